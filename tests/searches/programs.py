"""Programs whose result, or survival, depends on the schedule."""

from __future__ import annotations

import ctypes
import os
import queue
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import simdist
from simdist import RunResult

stores: Any = dist  # torch's stubs leave them out


def lost_update(wait_ms: int = 1) -> int:
    """Read and write back a counter, each rank after the one before it, if no rank is late."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = stores.TCPStore("127.0.0.1", 29600, size, is_master=rank == 0)
    store.add("count", 0)
    time.sleep(rank * wait_ms / 1000)
    store.set("count", str(int(store.get("count")) + 1))
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(size)])
    found = int(store.get("count"))
    store.set(f"read {rank}", "")
    if rank == 0:  # the store ends with rank 0
        store.wait([f"read {each}" for each in range(size)])
    if found != size:
        raise ValueError(f"{found} of {size} updates")
    return found


def first_come() -> list[int] | None:
    """Receive on rank 0 from any rank, in the order of arrival."""
    dist.init_process_group("gloo")
    if dist.get_rank():
        dist.send(torch.tensor([float(dist.get_rank())]), 0)
        return None
    got = []
    for _ in range(dist.get_world_size() - 1):
        message = torch.zeros(1)
        dist.recv(message)
        got.append(int(message))
    return got


def check_then_act() -> list[int]:
    """Let two threads check that a queue is not empty, and then take from it."""
    items: queue.Queue[int] = queue.Queue()
    taken: list[int] = []

    def work() -> None:
        while not items.empty():
            taken.append(items.get_nowait())

    for item in range(3):
        items.put(item)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(work) for _ in range(2)]:
            each.result()
    return sorted(taken)


def all_together() -> float:
    """Compute the same under every schedule."""
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    for _ in range(3):
        dist.all_reduce(total)
    return float(total)


def wrong_sum() -> float:
    """Compute a value for which `simdist.always` fails."""
    import simdist

    total = all_together()
    simdist.always("small", total < 0)
    simdist.sometimes("large", total > 1e9)
    return total


def in_place(folder: str, steps: int = 3) -> list[float]:
    """Write each checkpoint over the one before it."""
    import simdist

    dist.init_process_group("gloo")
    path, first, total = Path(folder) / "last.pt", 0, torch.zeros(2)
    if path.exists():
        saved = torch.load(path)
        first, total = saved["step"] + 1, saved["total"]
    for step in range(first, steps):
        simdist.step(step)
        part = torch.full((2,), float(step + dist.get_rank()))
        dist.all_reduce(part)
        total += part
        if dist.get_rank() == 0:
            torch.save({"step": step, "total": total}, path)
        dist.barrier()
    found: list[float] = total.tolist()
    return found


def gives_up() -> int:
    """Treat an error of communication as a result."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    try:
        for _ in range(4):
            dist.all_reduce(total)
    except RuntimeError:
        return -1
    return int(total)


def unlucky(bad: int = 7) -> float:
    """Raise an error on rank 1 with one of twenty seeds."""
    dist.init_process_group("gloo")
    drawn = random.randrange(20)
    if drawn == bad and dist.get_rank() == 1:
        raise ValueError(f"drew {drawn}")
    total = torch.rand(1)
    dist.all_reduce(total)
    return float(total)


def crashes_python(way: str) -> None:
    """End the whole process with one of twenty seeds."""
    dist.init_process_group("gloo")
    if random.randrange(20) == 7:
        if way == "segfault":
            ctypes.string_at(0)
        ctypes.CDLL(None)._exit(7)


def never_above_two(result: RunResult) -> str | None:
    """Check that no total of two ranks is above 1.8."""
    return "above 1.8" if result.ranks[0].value > 1.8 else None


def asserts(result: RunResult) -> None:
    """Check the same by an assertion."""
    assert result.ranks[0].value <= 1.8, "above 1.8"


def asserts_without_a_text(result: RunResult) -> None:
    """Check the same by an assertion without a text."""
    assert result.ranks[0].value <= 1.8


def begins_again() -> None:
    """Begin again after a restart with rank 0's state; assert that each rank can get it."""
    dist.init_process_group("gloo")
    state = torch.zeros(1)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        try:
            dist.broadcast(state, 0)
        except RuntimeError:
            simdist.always("a rank that begins again gets the state", False)
            raise
    for _ in range(4):
        dist.all_reduce(state)
    dist.destroy_process_group()


def falls_out(steps: int) -> None:
    """Raise on the rank in the middle, in the second step."""
    dist.init_process_group("gloo")
    for step in range(steps):
        if step == 1 and dist.get_rank() == dist.get_world_size() // 2:
            raise ValueError(f"step {step} of rank {dist.get_rank()}")
