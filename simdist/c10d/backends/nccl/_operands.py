"""What calls are given, in one form: tensors out of lists, reductions with their factors."""

from __future__ import annotations

from typing import Any

import torch

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import require_tensor
from simdist.c10d.surface._calls import reduction_of

__all__ = ["as_real", "bare_tensor", "bytes_of", "dense_tensor", "listed_tensors", "of_type"]
__all__ += ["reduction_and_factor", "require_devices"]

Tensor = torch.Tensor


def reduction_and_factor(opts: Any, op: Any = None) -> tuple[str, Any]:
    """The name of the reduction, and the factor of PREMUL_SUM, which only its pickled form tells."""
    reduction = reduction_of(opts, op)
    if reduction != "premul_sum":
        return reduction, None
    given = op if op is not None else getattr(opts, "reduceOp", opts)
    factor = given.__getstate__()[1]
    return reduction, factor.cpu() if isinstance(factor, Tensor) else factor


def bytes_of(data: Tensor) -> int:
    return data.numel() * data.element_size()


def bare_tensor(tensors: Any) -> Tensor:
    tensor: Tensor = tensors if isinstance(tensors, Tensor) else tensors[0]
    return tensor


def listed_tensors(tensors: Any) -> list[Tensor]:
    """The tensors of a list of lists, or of a list."""
    inner = list(tensors)
    if inner and not isinstance(inner[0], Tensor):
        if len(inner) != 1:
            _arguments.single(inner)
        inner = list(inner[0])
    for tensor in inner:
        require_tensor(tensor)
    return inner


def as_real(tensor: Tensor, operation: str = "", reduction: str = "") -> Tensor:
    """A complex tensor as its real and imaginary parts, which is how NCCL takes it.

    Raises:
        RuntimeError: the reduction of an operation is not one of parts.
    """
    if not tensor.is_complex():
        return tensor
    if reduction not in ("", "sum", "avg", "premul_sum"):
        raise RuntimeError(f"{operation} does not support {reduction.upper()} on complex tensors")
    return torch.view_as_real(tensor)


def dense_tensor(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def of_type(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == like.dtype else tensor.to(like.dtype)


def require_devices(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
