"""Shared by the tests of NCCL: worlds over it, each rank on its own device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import simdist
from tests.builds import VERSION

__all__ = ["SAME_DEVICE", "join", "of", "results", "run", "said"]

SAME_DEVICE = [f"Duplicate GPU detected : rank {a} and rank {1 - a} both on CUDA device 1000" for a in (0, 1)]
if VERSION >= (2, 14):
    SAME_DEVICE = [
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
        "configuration."
    ] * 2
"""NCCL's error on either of two ranks that have one device."""


def join(backend: str | None = "nccl", **settings: Any) -> int:
    """Take the device of the local rank, make the default group; returns the rank."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, **settings)
    return dist.get_rank()


def of(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor on the current device."""
    return torch.tensor(values, dtype=dtype, device="cuda")


def run(body: Callable[..., Any], world_size: int = 2, **settings: Any) -> simdist.RunResult:
    """Run a world over NCCL."""
    return simdist.run(body, world_size=world_size, **{"backend": "nccl", **settings})


def results(body: Callable[..., Any], world_size: int = 2, **settings: Any) -> list[Any]:
    """Return each rank's result of `body`; the error of a rank that fails is raised."""
    result = run(body, world_size, **settings)
    failed = next((rank.exception for rank in result.ranks if rank.exception is not None), None)
    if failed is not None:
        raise failed
    result.raise_for_failure()
    return result.values


def said(call: Callable[[], Any]) -> str:
    """Return the type and text of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
