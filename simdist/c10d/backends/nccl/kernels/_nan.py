"""TORCH_NCCL_NAN_CHECK: a kernel checks the data that a rank sends, and fails on the device if it finds a NaN."""

from __future__ import annotations

import torch

from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload
from simdist.c10d.calls._read import read_by

__all__ = ["holds_nan"]


def holds_nan(operation: Operation, payload: Payload, rank: int) -> bool:
    """True if a rank's input to an operation holds a NaN; tensors that it only receives are not checked."""
    return any(_has_nan(tensor) for tensor in read_by(operation, payload, rank))


def _has_nan(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return False
    values = tensor.float() if tensor.element_size() == 1 else tensor
    return bool(torch.isnan(values).any())
