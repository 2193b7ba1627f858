"""Small trainings with a bug that can be switched on, for the tests of judges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.result import JudgeFinding, RunResult

__all__ = ["gradient_in_memory_of_sums", "grouped", "line_of", "net", "only_finding", "run"]


def net(seed: int = 0) -> nn.Sequential:
    """Return a small model, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def grouped(body: Callable[[int], None]) -> Callable[[], None]:
    """Return a rank's program, which calls `body(rank)` with a default group."""

    def program() -> None:
        dist.init_process_group("gloo")
        torch.manual_seed(100 + dist.get_rank())
        body(dist.get_rank())
        dist.destroy_process_group()

    return program


def gradient_in_memory_of_sums(size: int) -> torch.Tensor:
    """Sum two tensors over all ranks that are gone at once, and return a new one in their memory.

    An allocator does so when it likes; here it always happens.
    """
    memory = bytearray(4 * size)
    for _ in range(2):
        dist.all_reduce(torch.frombuffer(memory, dtype=torch.float32))
    return torch.frombuffer(memory, dtype=torch.float32).fill_(dist.get_rank())


def run(body: Callable[[int], None], *judges: str, world_size: int = 3, **settings: Any) -> RunResult:
    """Run `body(rank)` with a default group under these judges, or under all."""
    result = simdist.run(grouped(body), world_size=world_size, judges=judges or True, **settings)
    first = result.first_failure()
    assert first is None, first.stderr
    return result


def only_finding(result: RunResult) -> JudgeFinding:
    """Return the only finding."""
    (finding,) = result.findings
    return finding


def line_of(function: Callable[..., Any], text: str) -> str:
    """Return how findings name the line of a function that contains `text`."""
    import inspect
    from pathlib import Path

    lines, first = inspect.getsourcelines(function)
    (place,) = (index for index, line in enumerate(lines) if text in line)
    return f"{Path(inspect.getfile(function)).name}:{first + place} in {function.__name__}"


def wrapped(model: nn.Module) -> DistributedDataParallel:
    """Return the model in DDP."""
    return DistributedDataParallel(model)
