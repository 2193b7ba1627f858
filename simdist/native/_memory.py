"""What judges read of memory, in the extension where it is there: copies, comparisons, values that are no numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from simdist.inside.python import copied_bytes, holds_bytes
from simdist.native import _folds

__all__ = ["NOT_LOOKED", "copied", "holds", "place_not_finite"]

NOT_LOOKED = -2

_INTEGER = len(_folds.TYPES)  # what the extension passes over
_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_KINDS: dict[torch.dtype, int] = {dtype: _folds.TYPES[dtype] for dtype in _FLOATING}
_KINDS |= dict.fromkeys(_WHOLE, _INTEGER)
_dtype: Callable[[torch.Tensor], torch.dtype] = operator.attrgetter("dtype")


def copied(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes | None]:
    """A copy of each memory, sizes in bytes; None where the address is 0."""
    if _folds.module is not None:
        copies: list[bytes | None] = _folds.module.copied(addresses, sizes)
        return copies
    return [copied_bytes(*place) if place[0] else None for place in zip(addresses, sizes, strict=True)]


def holds(addresses: Sequence[int], copies: list[bytes | None]) -> bool:
    """True if each memory holds the bytes of its copy; None stands for the address 0."""
    if _folds.module is not None:
        return bool(_folds.module.holds(addresses, copies))
    return all(
        holds_bytes(address, copy) if address and copy is not None else not address and copy is None
        for address, copy in zip(addresses, copies, strict=True)
    )


def place_not_finite(tensors: Sequence[torch.Tensor], addresses: Sequence[int], sizes: Sequence[int]) -> int:
    """The place of the first tensor with an element that is infinite or no number; -1 if there is none.

    `NOT_LOOKED`: the caller has to look, as the extension is not there or does not know a type.
    """
    kinds = list(map(_KINDS.get, map(_dtype, tensors)))  # hot: mapped it takes half the time of a loop
    if _folds.module is None or None in kinds:
        return NOT_LOOKED
    return int(_folds.module.not_finite(kinds, addresses, sizes))
