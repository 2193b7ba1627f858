from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.faults import Fault
from simdist.result import RunResult
from tests.strategies import fault_schedules

WORLD = 3


def program() -> float:
    """Use a bit of everything, with each wait limited to 20 ms."""
    dist.init_process_group("gloo", timeout=timedelta(milliseconds=20))
    rank = dist.get_rank()
    total = torch.full((10,), float(rank))
    for index in range(3):
        simdist.step(index)
        time.sleep(0.001)
        dist.all_reduce(total)
        dist.broadcast(total, index % WORLD)
    if rank == 0:
        dist.send(total, 1)
    elif rank == 1:
        dist.recv(total, 0)
    dist.barrier()
    dist.destroy_process_group()
    return total.sum().item()


def run(faults: list[Fault], backend: str, max_restarts: int) -> RunResult:
    return simdist.run(program, world_size=WORLD, faults=faults, backend=backend, max_restarts=max_restarts)


@settings(max_examples=75)
@given(fault_schedules(WORLD), st.sampled_from(["gloo", "sim"]), st.integers(0, 1))
def test_whatever_goes_wrong_the_run_ends_the_same_way_twice(
    faults: list[Fault], backend: str, max_restarts: int
) -> None:
    result = run(faults, backend, max_restarts)
    again = run(faults, backend, max_restarts)

    assert again.digest == result.digest
    assert all(one.time_ns <= other.time_ns for one, other in pairwise(result.events))
    assert len(result.ranks) == WORLD
    for rank in result.ranks:
        assert rank.status in ("returned", "raised", "killed", "hung")
        assert rank.status != "raised" or type(rank.exception) in (
            RuntimeError,
            dist.DistStoreError,
            dist.DistNetworkError,
        )
        # Every wait has a timeout, so only a stopped rank can hang.
        assert rank.status != "hung" or backend == "sim" or rank.waiting.startswith("stopped by a fault")
