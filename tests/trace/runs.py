"""Small runs for the tests of traces, made once."""

from __future__ import annotations

import functools
import time

import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash
from simdist.result import RunResult

__all__ = ["crashed", "pipeline", "stuck"]


@functools.cache
def pipeline() -> RunResult:
    """Run: rank 1 computes and sends to rank 2 in a sub-group of these two; then all ranks reduce."""

    def program() -> None:
        dist.init_process_group("gloo")
        group = dist.new_group([1, 2], group_desc="pair")
        rank, tensor = dist.get_rank(), torch.ones(4)
        if rank == 1:
            time.sleep(0.002)
            dist.send(tensor, 2, group=group)
        elif rank == 2:
            dist.recv(tensor, group=group)
        dist.all_reduce(tensor)

    return simdist.run(program, world_size=3)


@functools.cache
def crashed() -> RunResult:
    """Run: rank 1 dies in its second all_reduce."""

    def program() -> None:
        dist.init_process_group("gloo")
        for step in range(3):
            simdist.step(step)
            time.sleep(0.001)
            dist.all_reduce(torch.ones(4))

    return simdist.run(program, world_size=3, faults=[Crash(rank=1, op="all_reduce", nth=2, when="during")])


@functools.cache
def stuck() -> RunResult:
    """Run: both ranks receive first."""

    def program() -> None:
        dist.init_process_group("gloo")
        dist.recv(torch.ones(4), src=1 - dist.get_rank())

    return simdist.run(program, world_size=2)
