"""TORCH_NCCL_NAN_CHECK: a kernel looks at what is sent, and fails on the device where it finds a NaN."""

from __future__ import annotations

import torch

from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload
from simdist.c10d.calls._read import read_by

__all__ = ["device_assert", "holds_nan"]


def holds_nan(operation: Operation, payload: Payload, rank: int) -> bool:
    """True if what a rank puts into an operation holds a NaN; what it only receives is not looked at."""
    return any(_has_nan(tensor) for tensor in read_by(operation, payload, rank))


def _has_nan(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return False
    values = tensor.float() if tensor.element_size() == 1 else tensor
    return bool(torch.isnan(values).any())


def device_assert() -> Exception:
    """What every call of CUDA raises after it."""
    return torch.AcceleratorError(
        "CUDA error: device-side assert triggered\n"
        "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for "
        "more information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
