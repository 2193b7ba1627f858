"""What tensors hold, read without a trace: no operator that a mode or a stream would see, and no virtual time.

Memory is read at its address. A numpy array over it would be simpler, and leave a trace: torch never resizes a storage
again that an array was made of (torch 2.13, `tensor_to_numpy`), which FSDP does all the time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from simdist.device import values_now
from simdist.inside.python import bytes_at

__all__ = ["bits_inside", "bits_of", "first_not_finite", "is_constant", "is_finite", "local_part", "place_in_memory"]

Tensor = torch.Tensor

_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_REAL: dict[Any, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def local_part(tensor: Any) -> Any:
    """Of a DTensor this rank's part; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def bits_of(tensor: Any) -> int | None:
    """CRC-32 over the elements of a rank's tensor; None where they are out of reach, or not there yet."""
    data = _readable(tensor)
    if data is None:
        return None
    size = data.nbytes
    return zlib.crc32(bytes_at(data.data_ptr(), size)) if size else 0


def is_constant(tensor: Any) -> bool:
    """True if all elements are the same bits, or there is at most one."""
    data = _readable(tensor)
    if data is None or data.numel() < 2:
        return True
    bytes_ = memoryview(bytes_at(data.data_ptr(), data.nbytes)).cast("B")
    return bytes_[data.itemsize :] == bytes_[: -data.itemsize]


def is_finite(tensor: Any) -> bool:
    """False if an element is infinite or no number; True where that can't be seen."""
    return first_not_finite((tensor,)) is None


def first_not_finite(tensors: Iterable[Any]) -> int | None:
    """The place of the first tensor with an element that is infinite or no number; None if there is none to be seen.

    What is None is left out.
    """
    with np.errstate(all="ignore"):
        for place, tensor in enumerate(tensors):
            data = None if tensor is None or not tensor.is_floating_point() else _readable(tensor)
            if data is None or not (size := data.nbytes):
                continue
            kind = _REAL.get(data.dtype)
            if kind is not None:
                elements = np.frombuffer(memoryview(bytes_at(data.data_ptr(), size)), kind)
                total = elements.dot(elements)  # one pass; it overflows only where elements are near the range's end
                if total - total == 0.0:
                    continue
            # Types of a byte have no such operator of their own.
            if not bool(torch.isfinite(data if data.itemsize > 1 else data.float()).all()):
                return place
    return None


def place_in_memory(tensor: Any) -> int:
    """The address of a tensor's storage; 0 if it has none."""
    try:
        return int(local_part(tensor).untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def bits_inside(batch: Any) -> Iterator[int | None]:
    """The bits of the tensors in a batch, in order."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for each in batch:
            yield from bits_inside(each)
    elif hasattr(batch, "untyped_storage"):
        yield bits_of(batch)


def _readable(tensor: Any) -> Tensor | None:
    """A dense CPU tensor with the elements, over the same memory where it can; None where there is none.

    Who uses its address keeps it.
    """
    try:
        if type(tensor) in _PLAIN and not tensor.is_cuda and tensor.is_contiguous():
            # Hot: what most tensors are. One without memory, or whose storage was freed, has no address.
            data: Tensor = tensor
            if data.data_ptr() and not data.is_neg():
                return data
        data = local_part(tensor).data
        if data.layout is not torch.strided or data.is_meta or data.is_quantized or data.is_nested:
            return None
        if not data.numel():
            return torch.empty(0)
        if data.is_cuda:
            found = values_now(data)
            if found is None:
                return None
            data = found
        data = data.resolve_conj().resolve_neg().contiguous()
        return data if data.data_ptr() and type(data) in _PLAIN else None
    except (RuntimeError, NotImplementedError, AttributeError):
        return None  # it has no memory of its own
