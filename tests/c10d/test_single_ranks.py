"""Groups of one rank, in which every operation is complete when it is called, and faults that strike there."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash, Hang


def alone() -> float:
    dist.init_process_group("gloo")
    tensor = torch.full((4,), 3.0)
    dist.all_reduce(tensor)
    return tensor.sum().item()


def alone_with_a_pending_operation() -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()


def alone_in_a_subgroup() -> None:
    dist.init_process_group("gloo")
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    dist.all_reduce(torch.ones(4), group=groups[dist.get_rank()], async_op=True)
    dist.barrier()


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_rank_alone_dies_where_the_fault_strikes(when: Literal["before", "during", "after"]) -> None:
    result = simdist.run(alone, world_size=1, faults=[Crash(rank=0, op="all_reduce", when=when)])

    assert [rank.status for rank in result.ranks] == ["killed"]
    assert result.virtual_time_ns == 0


def test_a_rank_alone_hangs_inside_an_operation_for_good_or_for_a_while() -> None:
    for_good = simdist.run(alone, world_size=1, faults=[Hang(rank=0, op="all_reduce", when="during")])
    a_while = simdist.run(
        alone, world_size=1, faults=[Hang(rank=0, op="all_reduce", when="during", duration_ns=1_000_000_000)]
    )

    assert for_good.ranks[0].status == "hung"
    assert a_while.values == [12.0]
    assert a_while.virtual_time_ns == 1_000_000_000


@pytest.mark.parametrize("program", [alone_with_a_pending_operation, alone_in_a_subgroup])
@pytest.mark.parametrize(
    "fault",
    [
        Crash(rank=0, op="all_reduce", when="during"),
        Crash(rank=0, op="all_reduce", when="after"),
        Crash(rank=0, op="barrier", when="before"),
    ],
    ids=["during", "after", "later"],
)
@pytest.mark.parametrize("restarts", [0, 1])
def test_an_operation_that_is_pending_when_its_only_rank_dies_goes_with_it(
    program: object, fault: Crash, restarts: int
) -> None:
    assert callable(program)
    result = simdist.run(program, world_size=2, faults=[fault], max_restarts=restarts)

    assert result.restarts == restarts
    if restarts:
        result.raise_for_failure()
    else:
        assert result.ranks[0].status == "killed"
