"""The code that every side of the benchmark runs on a rank after init_process_group. It uses only torch.distributed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def real_clock() -> float:
    """Return real seconds, also on simulated ranks, where `time.perf_counter` is virtual."""
    process = sys.modules.get("simdist.process")  # of which other sides have none
    clock = time.perf_counter if process is None else process.original(time.perf_counter)
    return float(clock())


Stamps = list[tuple[float, float]]  # one (begin, end) per batch


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes before the measured part and at its peak."""

    before: int
    peak: int


def one_all_reduce() -> None:
    """Do the least that a useful world does."""
    dist.all_reduce(torch.ones(1))


def batches(call: Callable[[], object], calls: int, repeat: int) -> Stamps:
    """Time `repeat` batches of `calls` calls each, after a short warm-up."""
    for _ in range(max(1, calls // 10)):
        call()
    stamps: Stamps = []
    for _ in range(repeat):
        begin = real_clock()
        for _ in range(calls):
            call()
        stamps.append((begin, real_clock()))
    return stamps


def small_calls(name: str, calls: int, repeat: int) -> Stamps:
    """Time blocking calls of a collective, each with one float, or with a Python number if it gathers objects."""
    tensor, ranks = torch.ones(1), dist.get_world_size()
    gathered = [torch.zeros(1) for _ in range(ranks)]
    objects: list[object] = [None] * ranks
    call: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, 0),
        "all_gather": lambda: dist.all_gather(gathered, tensor),
        "gather": lambda: dist.gather(tensor, gathered if dist.get_rank() == 0 else None),
        "all_gather_object": lambda: dist.all_gather_object(objects, 1.0),
    }
    return batches(call[name], calls, repeat)


def big_all_reduce(elements: int, repeat: int) -> tuple[Stamps, Memory]:
    """Time all_reduces of `elements` floats, one at a time, and measure their memory."""
    tensor = torch.ones(elements)
    dist.barrier()
    if dist.get_rank() == 0:
        reset_peak()
    before = resident_bytes("VmRSS")
    dist.barrier()
    stamps = batches(lambda: dist.all_reduce(tensor), 1, repeat)
    dist.barrier()
    return stamps, Memory(before, resident_bytes("VmHWM"))


def additions(calls: int, repeat: int, device: str) -> float:
    """Return the processor seconds of one `a + b` of 8 x 8, in the best of `repeat` batches."""
    process = sys.modules["simdist.process"]
    clock = process.original(time.thread_time)
    a, b = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device)
    best = float("inf")
    for _ in range(repeat):
        begin = clock()
        for _ in range(calls):
            a + b  # the measured operation
        best = min(best, clock() - begin)
    return best / calls


def ddp_steps(steps: int, repeat: int, device: str = "cpu") -> Stamps:
    """Time training steps of a 3 x 64 MLP under DDP: forward, backward, SGD."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.ones(8, 64, device=device), torch.zeros(8, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call] # torch's own gap
        optimizer.step()

    return batches(step, steps, repeat)


def ten_ddp_steps() -> None:
    """Do a training that is short enough for thousands of runs."""
    dist.init_process_group("gloo")
    ddp_steps(10, 1)


def save_checkpoints(folder: str, count: int, megabytes: int) -> float:
    """Save `count` checkpoints as careful programs do, keep the last two; returns the seconds of the fastest save."""
    tensor = torch.zeros(megabytes << 18)
    best = float("inf")
    for number in range(count):
        tensor[0] = number
        path = Path(folder) / f"{number}.pt"
        began = real_clock()
        with path.with_suffix(".tmp").open("wb") as file:
            torch.save(tensor, file)
        best = min(best, real_clock() - began)
        descriptor = os.open(path.with_suffix(".tmp"), os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
        path.with_suffix(".tmp").replace(path)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        (Path(folder) / f"{number - 2}.pt").unlink(missing_ok=True)
    return best


def save_carelessly(folder: str, count: int, megabytes: int) -> None:
    """Save `count` checkpoints without any sync, and keep the last two."""
    tensor = torch.zeros(megabytes << 18)
    for number in range(count):
        tensor[0] = number
        torch.save(tensor, Path(folder) / f"{number}.pt")
        (Path(folder) / f"{number - 2}.pt").unlink(missing_ok=True)


def reset_peak() -> None:
    """Reset VmHWM to the present size."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_bytes(field: str) -> int:
    """Return VmRSS (now) or VmHWM (peak) of this process; 0 where the system does not report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0
