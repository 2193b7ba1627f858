"""The memory of tensors: their bytes as one dimension, and a checksum over them.

What moves data works on these views, since Gloo works on memory: no autograd, no strides, no lazy negation.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from simdist.c10d.surface._events import PayloadSampled
from simdist.kernel import Bus

__all__ = ["as_bytes", "checksum", "flat", "is_dense"]

Tensor = torch.Tensor

# True once a tensor of inference mode was given to an operation. From then on all data moves in that mode, in which any
# tensor may be written; entering it costs more than moving a few bytes does, and hardly any program needs it.
inference_tensors = False

_WINDOWS = 8  # of a large tensor that is sampled
_IN_OTHER_ELEMENTS = frozenset((torch.bool, torch.complex32, torch.complex64, torch.complex128))
_IN_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8))


def flat(tensor: Tensor) -> Tensor:
    """The tensor's elements in memory order as one dimension, sharing its memory; complex ones as pairs of reals.

    Of a tensor that torch negates or conjugates when it is read, a copy: torch's dispatcher gives backends one too, and
    what they write into it is lost.
    Autograd does not see what is done to the result, as it does not see what Gloo does to the memory.
    """
    global inference_tensors
    tensor = tensor.data
    if tensor.is_inference():
        inference_tensors = True
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype in _IN_OTHER_ELEMENTS:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        else:
            tensor = tensor.view(torch.uint8)
    if tensor.stride() == (1,):  # not `is_contiguous`: of one element any stride is, but only this one views as bytes
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,))


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor as one dimension of bytes, shared."""
    data = flat(tensor)
    return data if data.dtype is torch.uint8 else data.view(torch.uint8)


def is_dense(tensor: Tensor) -> bool:
    """True if the elements of a tensor fill one stretch of memory, in whichever order."""
    if tensor.is_contiguous():
        return True
    extent = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()


bus: Bus | None = None  # of the one world that is active: told of payloads that are only sampled


def checksum(tensors: Sequence[Tensor], limit: int) -> int:
    """CRC-32 over the bytes of flat `tensors`; above `limit` bytes, over windows spread over all of them."""
    crc = 0
    whole = 0
    for tensor in tensors:
        if tensor.dtype in _IN_NUMPY and tensor.is_contiguous() and not tensor.requires_grad:
            array: Any = tensor.numpy()  # hot: of a few bytes the views cost more than the sum
            if array.nbytes <= limit:
                crc = zlib.crc32(array, crc)
                continue
        data = tensor.detach()
        if data.numel() == 0:
            continue
        if not data.is_contiguous():
            data = data.contiguous()
        view = as_bytes(data).numpy().data
        size = len(view)
        if size <= limit:
            crc = zlib.crc32(view, crc)
        else:
            if bus is not None and bus.hears(PayloadSampled):
                whole = zlib.crc32(view, whole)
            width = limit // _WINDOWS
            for index in range(_WINDOWS):
                begin = (size - width) * index // (_WINDOWS - 1)
                crc = zlib.crc32(view[begin : begin + width], crc)
    if whole:
        assert bus is not None
        bus.tell(PayloadSampled(whole))
    return crc
