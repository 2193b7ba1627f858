"""What judges read of memory, in the extension where it is there: copies, comparisons, values that are no numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simdist.inside.python import copied_bytes, holds_bytes
from simdist.native import _folds

__all__ = ["NOT_LOOKED", "copied", "holds", "lying", "place_not_finite"]

NOT_LOOKED = -2

_INTEGER = len(_folds.TYPES)  # what the extension passes over
_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_KINDS: dict[torch.dtype, int] = {dtype: _folds.TYPES[dtype] for dtype in _FLOATING}
_KINDS |= dict.fromkeys(_WHOLE, _INTEGER)
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def lying(tensors: list[torch.Tensor | None]) -> tuple[list[int], list[int]] | None:
    """The addresses and the sizes, in bytes, of plain, dense tensors of the CPU; 0 and 0 for None.

    None if one of them is another kind of tensor, or has no memory.
    """
    if _folds.module is not None:
        found: tuple[list[int], list[int]] | None = _folds.module.lying(tensors, _PLAIN)
        return found
    places = []
    for each in tensors:
        place = (0, 0) if each is None else _place(each)
        if place is None:
            return None
        places.append(place)
    return [address for address, _ in places], [size for _, size in places]


def _place(tensor: torch.Tensor) -> tuple[int, int] | None:
    try:
        if type(tensor) not in _PLAIN or tensor.is_cuda or not tensor.is_contiguous() or tensor.is_neg():
            return None
        address = tensor.data_ptr()
    except RuntimeError:
        return None  # sparse, or a tensor of a mode
    return (address, tensor.nbytes) if address else None


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


def place_not_finite(tensors: list[torch.Tensor | None]) -> int:
    """The place of the first tensor with an element that is infinite or no number; -1 if there is none.

    None is passed over. `NOT_LOOKED`: the caller has to look, as the extension is not there, or does not know a type,
    or a tensor has no place in `lying`.
    """
    return NOT_LOOKED if _folds.module is None else int(_folds.module.not_finite(tensors, _PLAIN, _KINDS))
