"""Argument checks of ProcessGroupNCCL, with its error texts (torch 2.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from simdist.c10d.calls import KERNELS, MESSAGES
from simdist.c10d.surface._arguments import row_counts
from simdist.c10d.surface._memory import is_dense
from simdist.errors import UnsupportedError

if TYPE_CHECKING:
    from simdist.c10d.surface._arguments import Tensors

__all__ = ["check_reduction", "check_type", "one_device", "require_in_bounds", "require_inputs"]
__all__ += ["require_listed", "require_lists", "require_tensor", "single", "split"]

Tensor = torch.Tensor

_TYPES = (
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
    *(torch.bfloat16, torch.bool, torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    torch.float8_e5m2fnuz,
)
_SHORT = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32", torch.uint64: "UInt64"}
_SHORT |= {torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble"}
_FRACTIONS = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
_BITS = ("band", "bor", "bxor")


def _type_name(dtype: torch.dtype) -> str:
    return _SHORT.get(dtype, str(dtype).removeprefix("torch.").capitalize())


def check_type(name: str, dtype: torch.dtype) -> None:
    """Refuse a type that NCCL does not have.

    Raises:
        TypeError: with NCCL's text; RuntimeError if torch itself splits the operation up.
    """
    if dtype in _TYPES:
        return
    if name not in KERNELS and name not in MESSAGES:
        raise RuntimeError(f"Unconvertible NCCL type {_type_name(dtype)}")
    raise TypeError(f"Input tensor data type is not supported for NCCL process group: {_type_name(dtype)}")


def check_reduction(reduction: str, dtype: torch.dtype) -> None:
    """Refuse a reduction that NCCL does not have for a type.

    Raises:
        ValueError, TypeError, RuntimeError: with NCCL's text.
    """
    if reduction in _BITS:
        raise ValueError(f"Cannot use ReduceOp.{reduction.upper()} with NCCL")
    if reduction == "avg" and dtype is torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if reduction == "premul_sum" and dtype not in _FRACTIONS:
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
    if dtype in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")


def require_tensor(tensor: Tensor, *, message: bool = False) -> None:
    """Refuse a tensor that the backend does not take, in a message or in another call."""
    if not tensor.is_cuda and (message or not tensor.is_sparse):
        raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
    if tensor.layout is not torch.strided:
        raise ValueError("Tensors must be CUDA and dense")
    if message:
        if not tensor.is_contiguous() and not is_dense(tensor):
            raise ValueError("Tensors for P2P must be non-overlapping and dense")
    elif not tensor.is_contiguous() and not (
        tensor.dim() in (4, 5)
        and tensor.is_contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
    ):
        raise ValueError("Tensors must be contiguous")


def single(tensors: Tensors, *, message: bool = False) -> Tensor:
    """Return the one tensor of a call that takes a list of one, or a bare tensor."""
    if isinstance(tensors, Tensor):
        tensors = [tensors]
    if len(tensors) != 1:
        raise RuntimeError(
            "Expecting one tensor only but got multiple. You are probably using multiple devices under one thread. The "
            "support for such usage has been deprecated. For details, please refer to "
            "https://pytorch.org/docs/stable/distributed.html#multi-gpu-collective-functions. ProcessGroupNCCL "
            "continues supporting multi-process and multi-thread modes."
        )
    tensor: Tensor = tensors[0]
    if not (tensor.is_cuda and tensor.layout is torch.strided and tensor.is_contiguous()):
        require_tensor(tensor, message=message)
    return tensor


def require_listed(tensors: Sequence[Tensor]) -> None:
    """Refuse a list that a coalesced call does not take."""
    if not tensors:
        raise ValueError("Tensor list must be nonempty")
    first = tensors[0]
    for tensor in tensors:
        if not tensor.is_cuda or tensor.layout is not torch.strided:
            if not tensor.is_cuda:
                raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
            raise ValueError("Tensors must be CUDA and dense")
        if tensor.dtype != first.dtype:
            raise TypeError("Tensors must have identical type")
        if not is_dense(tensor):
            raise ValueError("Tensors must be non-overlapping and dense")
        if tensor.device != first.device:
            raise ValueError("Expected list of tensors on the same device")


def one_device(tensors: Sequence[Tensor]) -> None:
    """Refuse the lists of an all_to_all that are not on one device."""
    for tensor in tensors:
        require_tensor(tensor)
        if tensor.device != tensors[0].device:
            raise RuntimeError("Tensors must be on the same device")


def require_inputs(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Refuse the lists of an all_to_all where torch would read beyond the list of inputs, or an empty one.

    Raises:
        UnsupportedError: always, then.
    """
    if not outputs or len(inputs) < len(outputs):
        raise UnsupportedError(
            f"all_to_all over NCCL with {len(outputs)} output and {len(inputs)} input tensors: torch does not compare "
            "them, and reads beyond a list, which is not simulated; give one tensor of each for each rank"
        )


def require_lists(
    name: str, own: Tensor, listed: Sequence[Sequence[Tensor]], root: int, rank: int, size: int
) -> list[Tensor] | None:
    """Return the tensors of a root's list in a gather or scatter; None on the other ranks."""
    what = "output" if name == "gather" else "input"
    if not 0 <= root < size:
        _fail(name, f"invalid root rank: {root}")
    if rank != root:
        if len(listed):
            _fail(name, f"requires empty {what} on non-root")
        return None
    if len(listed) != 1:
        _fail(name, f"requires a single-element {what} list containing a list with {size} tensors.")
    tensors: list[Tensor] = list(listed[0])
    if len(tensors) != size:
        _fail(
            name,
            f"Incorrect {what} list size {len(tensors)}. {what.capitalize()} list size should be {size}, "
            "same as size of the process group.",
        )
    for index, tensor in enumerate(tensors):
        if tensor.dtype != own.dtype:
            said = f"(expected {own.type()}, got {tensor.type()})"
            _fail(name, f"invalid tensor type at index {index} {said}")
        if tensor.shape != own.shape:
            said = f"(expected {_shape(own)}, got {_shape(tensor)})"
            _fail(name, f"invalid tensor size at index {index} {said}")
    return tensors


def require_in_bounds(name: str, listed: Sequence[Tensor], own: Tensor, size: int) -> None:
    """Refuse the list of an all_gather or reduce_scatter for which NCCL would use memory that is not the list's.

    torch copies a list of equal tensors from or to one tensor, and compares neither their number nor their size with
    the group and the rank's own tensor. More tensors than ranks do no harm.

    Raises:
        RuntimeError: the list is empty; with torch's text.
        UnsupportedError: there are too few tensors, or they are not as large as the rank's own.
    """
    if not listed:
        raise RuntimeError("Received an empty list")
    wanted, elements = own.numel(), listed[0].numel()
    even = all(each.numel() == elements for each in listed)
    if len(listed) == size if not even else (len(listed) >= size and elements == wanted):
        return
    sizes = f"{elements} elements each" if even else "different sizes"
    what, verb = ("input", "output") if name == "all_gather" else ("output", "input")
    uses = "writes" if name == "all_gather" else "reads"
    raise UnsupportedError(
        f"{name} over NCCL in a group of {size} ranks, with a list of {len(listed)} {verb} tensors of {sizes} and an "
        f"{what} of {wanted} elements: torch does not compare them, and NCCL {uses} beyond the list or at wrong places "
        f"in it, which is not simulated; give one tensor for each rank, as large as the {what}"
    )


def split(tensor: Tensor, sizes: Sequence[int] | None, size: int) -> list[int]:
    """Return how many elements of a tensor each rank gets in an all_to_all_single."""
    counts, row = row_counts(tensor, sizes, size)
    return [count * row for count in counts]


def _fail(name: str, text: str) -> NoReturn:
    raise ValueError(f"ProcessGroupNCCL::{name}: {text}")


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(str(n) for n in tensor.shape)})"
