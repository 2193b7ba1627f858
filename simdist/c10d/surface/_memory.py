"""The memory of tensors: whether they have any, their bytes as one dimension, and a checksum over them.

Data movement works on these views, because Gloo works on memory: no autograd, no strides, no lazy negation. A tensor's
dispatch keys show whether it has its own memory with such a view (`is_plain`): subclasses, meta, sparse, quantized and
nested tensors do not. Its storage shows whether the memory is there (`flat` checks this).
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.calls import _unseen
from simdist.c10d.calls._events import PayloadSampled
from simdist.inside.python import bytes_at
from simdist.inside.torch import DispatchKey, key_set, keys_of
from simdist.kernel import Bus
from simdist.native import ROWS, addresses, content, row, uniform

if TYPE_CHECKING:
    from simdist.inside.python import SharedBytes

__all__ = ["as_bytes", "checksum", "flat", "flat_uniform", "is_dense", "is_plain", "is_plain_or_sparse"]
__all__ += ["few_bytes", "freed_since", "odd_tensors", "require_memory", "usual", "without_memory"]

Tensor = torch.Tensor

_WINDOWS = 8  # samples of a large tensor
_FEW_BYTES = 1 << 12  # up to this size, bytes are read in place
_IN_OTHER_ELEMENTS = frozenset((torch.bool, torch.complex32, torch.complex64, torch.complex128))
_IN_NUMPY = frozenset((torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8))
_USUAL = frozenset(dtype for dtype, _ in ROWS)  # real, and not quantized


def _bits(*names: str) -> int:
    found = 0
    for name in names:
        found |= key_set(getattr(DispatchKey, name)).raw_repr()
    return found


# All bits except those of dense CPU and GPU tensors, and those that autograd, autocast and lazy views add.
_ODD = ~_bits(
    *("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"),
    *("ADInplaceOrView", "Conjugate", "Negative"),
)
_ODD_AND_DENSE = _ODD & ~_bits("SparseCPU", "SparseCUDA")


_TYPES = frozenset((Tensor, torch.nn.Parameter))


def is_plain(given: Any, odd: int = _ODD) -> bool:
    """True if all tensors in a nested value are dense, in the memory of a CPU or GPU, and no wrappers of others."""
    # Hot: most tensors are recognized without their keys, which take longer to read. The address of a tensor without
    # its own memory is 0 or an error; nested tensors have an address.
    while (type(given) is list or type(given) is tuple) and len(given) == 1:
        given = given[0]
    if type(given) in _TYPES and given.dtype in _USUAL:
        try:
            if given.data_ptr() and not given.is_nested:
                return True
        except RuntimeError:
            pass
    elif type(given) is list or type(given) is tuple:
        for each in given:  # noqa: SIM110  # the generator of `all` costs more than a short list
            if not is_plain(each, odd):
                return False
        return True
    return not isinstance(given, Tensor) or not keys_of(given).raw_repr() & odd


is_plain_or_sparse = functools.partial(is_plain, odd=_ODD_AND_DENSE)
"""The same as `is_plain`, but accepts sparse COO tensors, too."""


_calls_with_odd_tensors = 0  # running calls; if there are any, `flat` checks its tensors


@contextlib.contextmanager
def odd_tensors() -> Iterator[None]:
    """While this is active, `flat` refuses tensors that are not plain; for a method that was given some."""
    global _calls_with_odd_tensors
    _calls_with_odd_tensors += 1
    try:
        yield
    finally:
        _calls_with_odd_tensors -= 1


def without_memory(tensor: Tensor) -> RuntimeError:
    """Return the error for a tensor that is not plain but whose memory is needed."""
    kind = "" if type(tensor) is Tensor else f"{type(tensor).__name__}, "
    return RuntimeError(
        f"a backend needs a dense tensor in the memory of a CPU or GPU, and got one of {kind}layout "
        f"{str(tensor.layout).removeprefix('torch.')}, device {tensor.device} and dispatch keys {keys_of(tensor)}; a "
        "real process would read memory that the tensor does not have"
    )


def flat(tensor: Tensor) -> Tensor:
    """Return the tensor's elements in memory order as one dimension, sharing its memory; complex ones as real pairs.

    For a lazily negated or conjugated tensor this is a copy: torch's dispatcher gives backends a copy too, and their
    writes into it are lost.
    Autograd does not see changes of the result, as it does not see what Gloo does to the memory.

    Raises:
        RuntimeError: its elements reach beyond its storage, or its storage was freed.
    """
    if _calls_with_odd_tensors and not is_plain(tensor):
        raise without_memory(tensor)
    tensor = tensor.data
    if tensor.is_inference():
        _unseen.inference_tensors = True
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype in _IN_OTHER_ELEMENTS:
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj())
        else:
            tensor = tensor.view(torch.uint8)
    begin = tensor.storage_offset()
    if tensor.untyped_storage().nbytes() < tensor.nbytes + (begin and begin * tensor.itemsize):
        require_memory(tensor)
    if tensor.stride() == (1,):  # not `is_contiguous`: a single element may have any stride, but must have this one
        return tensor
    if tensor._is_zerotensor():
        raise RuntimeError("ZeroTensors are immutable. Please materialize the tensor using `.clone()`")
    return tensor.as_strided((tensor.numel(),), (1,))


def flat_uniform(tensors: list[Tensor]) -> list[Tensor] | None:
    """Return `flat` of each, if all are plain, dense tensors of one real type and shape; else None: use `flat`.

    Hot: common properties are read once, and only the others for each tensor.
    """
    if not tensors or not uniform(tensors):
        return None
    first = tensors[0]
    size, element = first.nbytes, first.itemsize
    if first.dtype in _IN_OTHER_ELEMENTS:
        return None
    is_flat, count = first.dim() == 1, size // element
    flats = []
    for tensor in tensors:
        data = tensor.data
        begin = data.storage_offset()
        if (
            tensor.is_neg()
            or tensor.is_inference()
            or data.untyped_storage().nbytes() < size + (begin and begin * element)
        ):
            return None
        # The stride of a single element may be any.
        flats.append(data if is_flat and (count > 1 or data.stride() == (1,)) else data.as_strided((count,), (1,)))
    return flats


def usual(given: Any) -> tuple[Tensor, int, torch.dtype] | None:
    """Return the flat tensor, its bytes and its type, if it is plain, real and lies in memory as it should; else None.

    Hot: this does the checks of `is_plain`, `flat` and `require_memory`, and reads each property once.
    """
    found = row(given)
    if found is None:
        return None
    number, size = found
    dtype, element = ROWS[number]
    try:
        given._version  # noqa: B018  # an error for a tensor of inference mode; `is_inference` takes twice as long
        if not given.is_neg():
            data: Tensor = given.data
            begin = data.storage_offset()
            if data.untyped_storage().nbytes() >= (size + begin * element if begin else size):
                return data, size, dtype
    except RuntimeError:
        pass  # it has no storage either
    return None


def require_memory(tensor: Tensor) -> None:
    """Refuse a tensor whose storage is too small for it.

    Raises:
        RuntimeError: its elements reach beyond its storage, or its storage was freed.
    """
    size = tensor.nbytes
    if tensor.untyped_storage().nbytes() < size + tensor.storage_offset() * tensor.itemsize and size:
        raise _beyond_memory(tensor)


def freed_since(given: Iterable[object]) -> RuntimeError | None:
    """Return the error of an operation if the program has freed a storage of `given`, flat tensors in nested lists."""
    if type(given) is list and addresses(given) is not None:
        return None  # hot
    for each in given:
        if type(each) is Tensor:
            if each.data_ptr() or not each.numel():
                continue
            return RuntimeError(
                f"the storage of a tensor of {each.numel()} elements was freed while an operation still used it. Wait "
                "for the operation first; a real process would read or write memory that belongs to something else"
            )
        if isinstance(each, (list, tuple)):
            error = freed_since(each)
            if error is not None:
                return error
    return None


def _beyond_memory(tensor: Tensor) -> RuntimeError:
    size, there = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    begin = tensor.storage_offset() * tensor.element_size()
    if not there:
        return RuntimeError(
            f"the storage of a tensor of shape {tuple(tensor.shape)} was freed or never allocated: it has 0 of "
            f"{size} bytes. Allocate it before the call; a real process would be killed by a signal"
        )
    return RuntimeError(
        f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} wants bytes {begin} to {begin + size} "
        f"of a storage of {there} bytes. Backends read tensors as one block of memory: call .contiguous() first; a "
        "real process would read and write past the end of the memory"
    )


def few_bytes(tensor: Tensor) -> SharedBytes | None:
    """Return the shared bytes (`raw`) of a small, contiguous, plain tensor; None for other tensors or without memory.

    Hot: for a few bytes, views cost more than the work on them.
    """
    if type(tensor) in _TYPES and tensor.dtype in _USUAL:
        size = tensor.nbytes
        try:
            if 0 < size <= _FEW_BYTES and tensor.is_contiguous() and not tensor.is_neg():
                address = tensor.data_ptr()
                begin = tensor.storage_offset()
                if address and tensor.untyped_storage().nbytes() >= (size + begin * tensor.itemsize if begin else size):
                    return bytes_at(address, size)
        except RuntimeError:
            pass  # it has no address or storage
    return None


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a dense tensor as one dimension of bytes, shared."""
    data = flat(tensor)
    return data if data.dtype is torch.uint8 else data.view(torch.uint8)


def is_dense(tensor: Tensor) -> bool:
    """True if the elements of a tensor fill one stretch of memory, in any order."""
    if tensor.is_contiguous():
        return True
    extent = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()


bus: Bus | None = None  # of the one active world: gets reports of payloads that are only sampled


def checksum(tensors: Sequence[Tensor], limit: int) -> int:
    """Return the CRC-32 of the bytes of flat `tensors`; above `limit` bytes, of windows spread over a whole tensor."""
    crc = 0
    whole = 0
    few = limit if limit < _FEW_BYTES else _FEW_BYTES
    for tensor in tensors:
        found = content(tensor, few)
        if found is not None:
            crc = zlib.crc32(found, crc)
            continue
        if tensor.dtype in _IN_NUMPY and tensor.is_contiguous():
            # Hot: for a few bytes, the views cost more than the checksum.
            size, address = tensor.nbytes, tensor.data_ptr()
            if address and size <= _FEW_BYTES and size <= limit:
                crc = zlib.crc32(bytes_at(address, size), crc)
                continue
            if address and size > limit and not (bus is not None and bus.hears(PayloadSampled)):
                width = limit // _WINDOWS
                for index in range(_WINDOWS):
                    begin = address + (size - width) * index // (_WINDOWS - 1)
                    crc = zlib.crc32(bytes_at(begin, width), crc)
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
        bus.report(PayloadSampled(whole))
    return crc
