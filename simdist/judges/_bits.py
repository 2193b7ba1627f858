"""The bits of tensors, read without side effects: no operator that a mode or a stream would see, and no virtual time.

Memory is read at its address. A numpy array over it would be simpler, but has a side effect: torch never resizes a
storage again after an array was made of it (torch 2.13, `tensor_to_numpy`), and FSDP resizes storages all the time.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from simdist.device import Follower, follow_writes, memory_of, values_now
from simdist.inside.python import bytes_at
from simdist.inside.torch import without_functions, without_modes
from simdist.native import NOT_LOOKED, place_not_finite

__all__ = ["bits_inside", "bits_of", "bits_of_each", "bits_of_parts", "bits_of_written", "first_not_finite", "follow"]
__all__ += ["is_constant", "is_zero", "local_part", "numbers_of", "place_in_memory", "tensors_in"]
__all__ += ["tensors_inside"]

Tensor = torch.Tensor

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_REAL: dict[torch.dtype, type] = {torch.float32: np.float32, torch.float64: np.float64}
_BYTE = np.dtype(np.uint8)
_Elements: TypeAlias = Any  # a numpy array, which is no buffer to mypy before Python 3.12
_NO_ELEMENTS: _Elements = np.empty(0, np.float32)


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor, and any other tensor as it is."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def bits_of(tensor: Tensor | None) -> int | None:
    """Return the CRC-32 of a rank's tensor; None if its elements can't be read, or are not there yet."""
    return bits_of_each((tensor,))[0]


def bits_of_each(tensors: Iterable[Tensor | None]) -> list[int | None]:
    """Return `bits_of` each tensor."""
    return [None if found is None else zlib.crc32(found[1]) for found in _readable(tensors)]


def bits_of_parts(tensor: Tensor, parts: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the CRC-32 of parts of a rank's tensor, given by the index of their first element and their size."""
    for found in _readable((tensor,)):
        if found is not None:
            data, size = memoryview(found[1]).cast("B"), found[0].itemsize
            return [zlib.crc32(data[size * begin : size * (begin + count)]) for begin, count in parts]
    return [None] * len(parts)


def follow(tensor: Tensor, follower: Follower) -> Callable[[], bool]:
    """Let a follower look when a rank's tensor is there, before it changes again; returns whether it is there."""
    try:
        return follow_writes(local_part(tensor), follower)
    except (RuntimeError, NotImplementedError):
        return lambda: True  # a tensor without its own memory, such as a ShardedTensor


def bits_of_written(tensor: Tensor) -> int | None:
    """Return `bits_of` a tensor that is there, though operations that have still to begin will change it."""
    try:
        with without_modes(), without_functions():
            return bits_of(memory_of(local_part(tensor).data))
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # a tensor without its own memory


def is_constant(tensor: Tensor) -> bool:
    """True if all elements have the same bits, or there is at most one element, or none can be read."""
    for found in _readable((tensor,)):
        if found is not None and found[0].numel() > 1:
            bytes_ = memoryview(found[1]).cast("B")
            size = found[0].itemsize
            return bytes_[size:] == bytes_[:-size]
    return True


def is_zero(tensor: Tensor) -> bool | None:
    """True if all elements are zero; None if they can't be read, or are not there yet."""
    for found in _readable((tensor,)):
        if found is not None:
            return not found[1].any()
    return None


def numbers_of(tensor: Tensor | None) -> np.ndarray[Any, Any] | None:
    """Return a copy of the elements of a dense tensor of `float32` or `float64`; None for any other."""
    for found in _readable((tensor,)):
        if found is not None and found[0].dtype in _REAL:
            return np.array(found[1])
    return None


def first_not_finite(tensors: Iterable[Tensor | None]) -> int | None:
    """Return the index of the first tensor with an infinite element or a NaN; None if there is none that can be read.

    Entries that are None are skipped.
    """
    tensors = list(tensors)
    found = place_not_finite(tensors)
    if found != NOT_LOOKED:
        return None if found < 0 else found
    for place, seen in enumerate(_readable(tensors)):
        if seen is None:
            continue
        data, elements = seen
        # One pass; it overflows only if elements are near the end of the range. Unlike `dot` it never warns of that.
        if elements.dtype is not _BYTE and math.isfinite(np.vdot(elements, elements)):
            continue
        # Types of one byte have no `isfinite`.
        if data.is_floating_point() and not bool(torch.isfinite(data if data.itemsize > 1 else data.float()).all()):
            return place
    return None


def place_in_memory(tensor: Tensor) -> StorageWeakRef | None:
    """Return a tensor's storage, as a key that does not keep its memory; None if it has no memory.

    An address would not do: the memory of a tensor that is gone soon belongs to another one.
    """
    try:
        storage = local_part(tensor).untyped_storage()
        return StorageWeakRef(storage) if storage.data_ptr() else None  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):
        return None


def tensors_in(given: Any) -> list[Tensor]:
    """Return the tensors in nested lists and tuples, in order."""
    found = []
    for each in given if isinstance(given, list | tuple) else (given,):
        if isinstance(each, list | tuple):
            found += tensors_in(each)
        elif hasattr(each, "untyped_storage"):
            found.append(each)
    return found


def tensors_inside(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors in a batch, in order."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for each in batch:
            yield from tensors_inside(each)
    elif hasattr(batch, "untyped_storage"):
        yield batch


def bits_inside(batch: Any) -> Iterator[int | None]:
    """Yield the bits of the tensors in a batch, in order."""
    return map(bits_of, tensors_inside(batch))


def _readable(tensors: Iterable[Tensor | None]) -> Iterator[tuple[Tensor, _Elements] | None]:
    """Yield for each tensor a dense CPU tensor and its elements, over the same memory if possible; None if unreadable.

    Keep the tensor while you use the elements: they do not keep the memory.
    """
    for tensor in tensors:
        if tensor is None:
            yield None
            continue
        try:
            found: tuple[Tensor, _Elements] | None = None
            if type(tensor) in _PLAIN and not tensor.is_cuda and tensor.is_contiguous():
                # Hot: the usual case. A tensor without memory, or with a freed storage, has no address.
                address = tensor.data_ptr()
                if address and not tensor.is_neg():
                    found = tensor, _elements_at(address, tensor.nbytes, tensor.dtype)
            if found is None:
                found = _made_readable(local_part(tensor).data)
        except (RuntimeError, NotImplementedError, AttributeError):
            found = None  # a tensor without its own memory
        yield found


def _made_readable(data: Tensor) -> tuple[Tensor, _Elements] | None:
    if data.layout is not torch.strided or data.is_meta or data.is_quantized or data.is_nested:
        return None
    if not data.numel():
        return torch.empty(0), _NO_ELEMENTS
    if data.is_cuda:
        found = values_now(data)
        if found is None:
            return None
        data = found
    data = data.resolve_conj().resolve_neg().contiguous()
    address = data.data_ptr()
    return (data, _elements_at(address, data.nbytes, data.dtype)) if address and type(data) in _PLAIN else None


# A cache: parameters and gradients are read often, and seldom move.
@functools.lru_cache(maxsize=4096)
def _elements_at(address: int, size: int, dtype: torch.dtype) -> _Elements:
    """Return the elements at an address: as numbers for the types in `_REAL`, as bytes otherwise."""
    return np.frombuffer(memoryview(bytes_at(address, size)), _REAL.get(dtype, np.uint8))
