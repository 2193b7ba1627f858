"""What the tests of NCCL share: worlds over it, each rank on a device of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import simdist

__all__ = ["join", "of", "results", "run", "said"]


def join(backend: str | None = "nccl", **settings: Any) -> int:
    """Take the device of the local rank, make the default group; the rank."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, **settings)
    return dist.get_rank()


def of(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the current device."""
    return torch.tensor(values, dtype=dtype, device="cuda")


def run(body: Callable[..., Any], world_size: int = 2, **settings: Any) -> simdist.RunResult:
    """A world over NCCL."""
    return simdist.run(body, world_size=world_size, **{"backend": "nccl", **settings})


def results(body: Callable[..., Any], world_size: int = 2, **settings: Any) -> list[Any]:
    """What `body` returns on each rank; a rank that fails fails the caller."""
    result = run(body, world_size, **settings)
    failed = next((rank.exception for rank in result.ranks if rank.exception is not None), None)
    if failed is not None:
        raise failed
    result.raise_for_failure()
    return result.values


def said(call: Callable[[], Any]) -> str:
    """The type and text of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
