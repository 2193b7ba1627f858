"""Context variables, with which ranks begin."""

from __future__ import annotations

import decimal
import os
from contextvars import ContextVar, copy_context

import numpy
import torch
import torch.distributed as dist

import simdist

NAMES: ContextVar[list[str]] = ContextVar("names")
DEPTH: ContextVar[int] = ContextVar("depth", default=0)


def in_context(depth: int) -> list[object]:
    def body() -> list[object]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        found: list[object] = [DEPTH.get(), decimal.getcontext().prec]
        NAMES.get().append(f"rank {rank}")
        DEPTH.set(10 + rank)
        decimal.getcontext().prec = 20 + rank
        dist.barrier()
        return [*found, DEPTH.get(), decimal.getcontext().prec]

    NAMES.set(["host"])
    DEPTH.set(depth)
    with decimal.localcontext(prec=7):
        values = simdist.run(body, world_size=2).values
        return [*values, NAMES.get(), DEPTH.get(), decimal.getcontext().prec]


def test_a_rank_begins_with_those_of_the_starter_and_sets_its_own() -> None:
    found = copy_context().run(in_context, 3)
    assert found[:2] == [[3, 7, 10, 20], [3, 7, 11, 21]]


def test_the_starter_keeps_its_own_and_shares_the_values() -> None:
    assert copy_context().run(in_context, 4)[2:] == [["host", "rank 0", "rank 1"], 4, 7]


def test_each_life_begins_with_them() -> None:
    def body() -> int:
        found = DEPTH.get()
        DEPTH.set(found + 1)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("again")
        return found

    result = copy_context().run(lambda: (DEPTH.set(5), simdist.run(body, world_size=1, max_restarts=1))[1])
    assert result.values == [5]


def test_numpy_s_settings_are_among_them() -> None:
    with numpy.errstate(divide="raise"):
        assert simdist.run(lambda: numpy.geterr()["divide"], world_size=1).values == ["raise"]


def test_spawned_processes_begin_without_them() -> None:
    seen = torch.zeros(1)

    def started() -> None:
        DEPTH.set(6)
        simdist.spawn(lambda rank: seen.fill_(DEPTH.get() + 1), nprocs=1, isolate=False)

    copy_context().run(started)
    assert seen.item() == 1
