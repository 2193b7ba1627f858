"""Shared by the device tests: worlds with devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.cluster import build

__all__ = ["cuda", "model", "on_devices", "trained", "values"]

_F = TypeVar("_F", bound=Callable[..., None])


def values(
    body: Callable[..., Any],
    *,
    world_size: int = 1,
    devices: int | str = 4,
    memory: int = 80 << 30,
    args: Sequence[Any] = (),
    **settings: Any,
) -> list[Any]:
    """Return each rank's result of `body` in a world with devices; the error of a rank that fails is raised."""
    cluster = build(world_size, devices_per_host=devices, device_memory_bytes=memory)
    result = simdist.run(body, world_size=world_size, cluster=cluster, args=args, **settings)
    failed = next((rank.exception for rank in result.ranks if rank.exception is not None), None)
    if failed is not None:
        raise failed
    result.raise_for_failure()
    return result.values


def on_devices(test: _F) -> _F:
    """Run a test as the one rank of a world with four devices."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        values(functools.partial(test, *args, **kwargs))

    return run  # type: ignore[return-value]


def cuda(index: int = 0) -> torch.device:
    """Return a device."""
    return torch.device("cuda", index)


def model(index: int = 1) -> Any:
    """Return a small model on a device."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(cuda(index))


def trained(device: Any, ids: Any, steps: int) -> list[torch.Tensor]:
    """Train a model with DDP in the default group, on the rank's own numbers; returns its parameters."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
    parallel = DistributedDataParallel(module, device_ids=ids)
    optimizer = torch.optim.AdamW(parallel.parameters(), foreach=False)
    torch.manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        parallel(torch.randn(3, 4).to(device)).square().mean().backward()
        optimizer.step()
    assert all(each.grad is not None and each.grad.device == torch.device(device) for each in module.parameters())
    return [each.detach().cpu() for each in parallel.parameters()]
