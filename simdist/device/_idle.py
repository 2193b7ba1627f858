"""Operators for which nothing runs on a device: views, allocations, questions."""

from __future__ import annotations

import torch

from simdist.inside.torch import Operator, schema_of

__all__ = ["is_idle", "is_view"]

_IDLE = frozenset(
    (
        "aten.empty.memory_format",
        "aten.empty_strided.default",
        "aten.resize_.default",
        "aten.record_stream.default",
        "aten._fused_sdp_choice.default",
        "aten.set_.source_Tensor",
        "aten.is_set_to.default",
    )
)


def is_view(op: Operator) -> bool:
    """True if its results lie in the memory of its arguments, which it does not touch."""
    schema = schema_of(op)
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
        return True
    return torch.Tag.inplace_view in op.tags and "resize" not in schema.name


def is_idle(op: Operator) -> bool:
    """True if it touches no memory of a tensor."""
    return str(op) in _IDLE or is_view(op)
