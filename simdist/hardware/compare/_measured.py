"""The program that calibration runs: it measures the time of collectives on real processes."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["OPERATIONS", "SIZES", "measure"]

OPERATIONS = ("all_reduce", "broadcast")
SIZES = tuple(4 << (2 * exponent) for exponent in range(13))  # 4 B to 64 MiB in steps of 4
_ROUNDS = 5
_SHORTEST_S, _FEWEST, _MOST = 0.02, 2, 30  # of each point in each round: time spent, repetitions


def measure(backend: str, operations: list[str], sizes: list[int]) -> list[list[Any]]:
    """Time each operation at each size of payload in bytes; return rows of operation, size and seconds.

    The result is the repetition that a tenth of all repetitions undercut: the slower ones also waited for a core,
    milliseconds, where there are few. All points are measured in rounds, so that other work of the machine in one
    second spoils at most a fifth of a point. A time runs from the moment when the last rank calls to the moment when
    the last rank is done, as a simulation counts it: every repetition begins with a barrier, whose end the ranks
    distinguish by the system's clock.
    """
    dist.init_process_group(backend)
    device = "cuda" if backend == "nccl" else "cpu"
    points = [(operation, size) for operation in operations for size in sizes]
    times: dict[tuple[str, int], list[float]] = {point: [] for point in points}
    for _ in range(_ROUNDS):
        for point in points:
            times[point] += _timed(*point, device)
    dist.destroy_process_group()
    return [[*point, sorted(seconds)[len(seconds) // 10]] for point, seconds in times.items()]


def _timed(operation: str, size: int, device: str) -> list[float]:
    tensor = torch.ones(max(1, size // 4), device=device)
    times: list[float] = []
    _once(operation, tensor)
    go_on = torch.ones(1, device=device)
    while go_on.item():
        tensor.fill_(1.0)
        dist.barrier()
        began = time.monotonic()
        _once(operation, tensor)
        ended = time.monotonic()
        # The maximum over all ranks: the last to begin, the last to end. One machine has one monotonic clock.
        span = torch.tensor([began, ended], dtype=torch.float64, device=device)
        dist.all_reduce(span, op=dist.ReduceOp.MAX)
        times.append((span[1] - span[0]).item())
        if dist.get_rank() == 0 and (len(times) >= _MOST or (len(times) >= _FEWEST and sum(times) > _SHORTEST_S)):
            go_on.zero_()
        dist.broadcast(go_on, src=0)
    return times


def _once(operation: str, tensor: torch.Tensor) -> None:
    if operation == "all_reduce":
        dist.all_reduce(tensor)
    else:
        dist.broadcast(tensor, src=0)
    if tensor.is_cuda:
        torch.cuda.synchronize()
