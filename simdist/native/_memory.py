"""Reads of memory for judges: copies, comparisons, values that are not finite; and the exchange of generator states.

The extension does all of it, if it is there.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Sequence

import torch

from simdist.inside.python import bytes_at, copied_bytes, holds_bytes
from simdist.inside.torch import TENSOR_TABLE
from simdist.native import _folds

__all__ = ["NOT_LOOKED", "ROWS", "content", "copied", "exchanging", "holds", "place_not_finite", "row", "uniform"]

NOT_LOOKED = -2

_PLAIN = _folds.PLAIN
_READS = _folds.module is not None and TENSOR_TABLE is not None
ROWS = [(dtype, dtype.itemsize) for dtype in _folds.TYPES]
"""The types that `row` knows, by their numbers, with the bytes of an element."""


def _row(tensor: object) -> tuple[int, int] | None:
    if type(tensor) in _PLAIN and isinstance(tensor, torch.Tensor):
        number = _folds.TYPES.get(tensor.dtype)
        try:
            if number is not None and tensor.data_ptr() and tensor.stride() == (1,):
                return number, tensor.nbytes
        except RuntimeError:
            pass  # a tensor without address or strides
    return None


def _not_seen(tensors: list[torch.Tensor]) -> bool:
    return False


def _no_content(tensor: torch.Tensor, most: int) -> bytes | None:
    return None


# For a plain tensor of one dimension whose elements are adjacent: the number of its type (see `ROWS`), and its bytes.
# None for anything else. Hot: reading these properties one by one from torch takes four times as long.
row: Callable[[object], tuple[int, int] | None] = (
    functools.partial(_folds.module.row, _PLAIN, TENSOR_TABLE) if _folds.module is not None and _READS else _row
)
# True if all tensors of a list are plain and dense, on the CPU with memory, of one type and shape. False: the caller
# has to check. Hot: torch takes twice as long for each of these checks.
uniform: Callable[[list[torch.Tensor]], bool] = (
    functools.partial(_folds.module.uniform, _PLAIN, TENSOR_TABLE)
    if _folds.module is not None and _READS
    else _not_seen
)
# The bytes of a plain, dense tensor of a type in `ROWS`, if it has at most `most` bytes. None: the caller has to check.
content: Callable[[torch.Tensor, int], bytes | None] = (
    functools.partial(_folds.module.content, _PLAIN, TENSOR_TABLE)
    if _folds.module is not None and _READS
    else _no_content
)


def copied(tensors: list[torch.Tensor | None], most: int) -> list[bytes | None] | None:
    """Return a copy of each tensor's memory, None for None.

    None if one of them is no plain, dense CPU tensor, or has no memory, or all together have more than `most` bytes.
    """
    if _folds.module is not None and TENSOR_TABLE is not None:
        found: list[bytes | None] | None = _folds.module.copied(tensors, _PLAIN, TENSOR_TABLE, most)
        return found
    places = [None if each is None else _place(each) for each in tensors]
    if any(place is None and each is not None for place, each in zip(places, tensors, strict=True)):
        return None
    if sum(place[1] for place in places if place is not None) > most:
        return None
    return [None if place is None else copied_bytes(*place) for place in places]


def holds(tensors: list[torch.Tensor | None], copies: list[bytes | None]) -> bool:
    """True if each tensor's memory has the bytes of its copy, which `copied` made."""
    if _folds.module is not None and TENSOR_TABLE is not None:
        return bool(_folds.module.holds(tensors, _PLAIN, TENSOR_TABLE, copies))
    for tensor, copy in zip(tensors, copies, strict=True):
        if tensor is None or copy is None:
            if tensor is not None or copy is not None:
                return False
            continue
        place = _place(tensor)
        if place is None or place[1] != len(copy) or not holds_bytes(place[0], copy):
            return False
    return True


def _place(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the address and the size in bytes of a plain, dense CPU tensor; None for any other."""
    try:
        if type(tensor) not in _PLAIN or tensor.is_cuda or not tensor.is_contiguous() or tensor.is_neg():
            return None
        address = tensor.data_ptr()
    except RuntimeError:
        return None  # sparse, or a tensor of a mode
    return (address, tensor.nbytes) if address else None


def place_not_finite(tensors: list[torch.Tensor | None]) -> int:
    """Return the index of the first tensor with an infinite element or a NaN; -1 if there is none.

    Entries that are None are skipped. `NOT_LOOKED`: the caller has to check, because the extension is not there or does
    not know a type, or a tensor is not plain, dense and on the CPU.
    """
    if _folds.module is None or TENSOR_TABLE is None:
        return NOT_LOOKED
    return int(_folds.module.not_finite(tensors, _PLAIN, TENSOR_TABLE))


def exchanging(watched: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]) -> Callable[[bytes, bytes], bool]:
    """Return a function that writes to `places` if the `watched` places have the expected bytes.

    A place is an address and a size in bytes. The function's arguments are the expected bytes of `watched`, and the new
    bytes of `places`, each concatenated. With empty bytes it does not compare, or does not write. It returns False, and
    writes nothing, if the watched places have other bytes.
    """
    if _folds.module is not None:
        return functools.partial(_folds.module.exchange, _packed(watched), _packed(places))
    looked_at, written = [bytes_at(*place) for place in watched], [bytes_at(*place) for place in places]
    ends = list(itertools.accumulate(size for _, size in places))

    def exchange(seen: bytes, contents: bytes) -> bool:
        if seen and b"".join([each.raw for each in looked_at]) != seen:
            return False
        if contents:
            for each, end in zip(written, ends, strict=True):
                each.raw = contents[end - len(each) : end]
        return True

    return exchange


def _packed(places: Sequence[tuple[int, int]]) -> bytes:
    return b"".join([struct.pack("NN", *place) for place in places])
