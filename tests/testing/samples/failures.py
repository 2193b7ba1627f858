"""Tests that fail, each in its own way: what pytest prints about them stands in `tests/testing/golden`."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simdist
from simdist.faults import Crash
from simdist.testing import Sim


@pytest.mark.simdist(world_size=4)
def test_assertion(rank: int, world_size: int) -> None:
    gathered = [torch.zeros(2) for _ in range(world_size)]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    print("gathered", [int(tensor[0]) for tensor in gathered])
    expected = list(range(world_size)) if rank != 2 else [0, 1, 2, 4]
    assert [int(tensor[0]) for tensor in gathered] == expected
    dist.barrier()


@pytest.mark.simdist(world_size=4)
def test_deadlock(rank: int, world_size: int) -> None:
    box = torch.zeros(1)
    dist.recv(box, src=(rank + 1) % world_size)  # everybody receives before anybody sends
    dist.send(box, dst=(rank - 1) % world_size)


@pytest.mark.simdist(world_size=4, timeout="30s")
def test_timeout(rank: int) -> None:
    loss = torch.ones(1)
    for step in range(3):
        simdist.step(step)
        if rank == 3 and step == 2:
            time.sleep(3600)  # a data loader that never comes back
        dist.all_reduce(loss)


@pytest.mark.simdist(world_size=4)
def test_mismatch(rank: int) -> None:
    dist.barrier()
    gradient = torch.ones(8 if rank == 1 else 6)
    dist.all_reduce(gradient)


@pytest.mark.simdist(world_size=4, strict=True)
def test_mismatch_in_strict_mode(rank: int) -> None:
    dist.barrier()
    gradient = torch.ones(8 if rank == 1 else 6)
    dist.all_reduce(gradient)


@pytest.mark.simdist(world_size=4, faults=[Crash(rank=2, at_step=1, op="all_reduce", when="during")])
def test_crash(rank: int) -> None:
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    for step in range(3):
        simdist.step(step)
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        print(f"step {step} done")


@pytest.mark.simdist(world_size=4)
def test_exit(rank: int) -> None:
    dist.barrier()
    if rank == 0:
        raise SystemExit(3)
    dist.barrier()


def test_driven(sim: Sim) -> None:
    def train() -> None:
        dist.init_process_group("gloo")
        for step in range(3):
            simdist.step(step)
            time.sleep(1)
            dist.all_reduce(torch.ones(1))

    world = sim.start(train, world_size=3)
    world.advance("1.5s")
    sim.crash(2)
    world.finish()
