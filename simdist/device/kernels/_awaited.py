"""Which kernels the host waits for: those whose results have a shape, or are a number, that depends on values.

Torch tags these operators, but of some it depends on the arguments. An index that is a mask has to be counted first,
and one on the host is copied from pageable memory. Of an assignment to a mask, a single value on the host makes a
`masked_fill_`, which needs no count (`canDispatchToMaskedFill` in ATen's TensorAdvancedIndexing). The kernels in C++
know the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from simdist.inside.torch import Operator

__all__ = ["Waits", "waits_of"]

Waits = Callable[[Sequence[object], Mapping[str, object]], bool]
"""Return True if the host waits in a call with these arguments."""

Tensor = torch.Tensor
_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def waits_of(op: Operator) -> Waits | None:
    """Return when the host waits for an operator; None if it never does."""
    depends = _DEPENDING.get(str(op))
    if depends is not None:
        return depends
    return _always if _TAGS & set(op.tags) else None


def _always(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    return True


def _in_index(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    indices = args[1]
    assert isinstance(indices, (list, tuple))
    return any(isinstance(each, Tensor) and _is_mask(each) == each.is_cuda for each in indices)


def _in_assignment(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    target, indices, value, *flags = args
    assert isinstance(indices, (list, tuple))
    assert isinstance(target, Tensor)
    assert isinstance(value, Tensor)
    if not (flags and flags[0]) and value.numel() == 1 and not value.is_cuda:
        tensors = [each for each in indices if isinstance(each, Tensor)]
        if len(tensors) == 1 and _is_mask(tensors[0]) and tensors[0].device == target.device:
            return False
    return _in_index(args, kwargs)


def _in_repeat(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    return kwargs.get("output_size") is None


def _is_mask(index: Tensor) -> bool:
    return index.dtype is torch.bool or index.dtype is torch.uint8


_DEPENDING: dict[str, Waits] = {
    "aten.index.Tensor": _in_index,
    "aten._unsafe_index.Tensor": _in_index,
    "aten.index_put_.default": _in_assignment,
    "aten.index_put.default": _in_assignment,
    "aten._index_put_impl_.default": _in_assignment,
    "aten.repeat_interleave.Tensor": _in_repeat,
}
