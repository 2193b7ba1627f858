"""A change of a tensor while a send still uses it is found, on every schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.judges.programs import grouped, line_of, only_finding, run


def sends(rank: int, *, waits: bool) -> None:
    if rank == 0:
        given = torch.zeros(4)
        work = dist.isend(given, 1, tag=2)
        assert work is not None
        if waits:
            work.wait()
        given += 1
        if not waits:
            work.wait()
    if rank == 1:
        dist.recv(torch.zeros(4), 0, tag=2)


def test_a_tensor_that_is_changed_before_its_data_left_is_found() -> None:
    found = only_finding(run(partial(sends, waits=False), world_size=2))

    assert (found.judge, found.rank, found.where) == ("buffers", 0, line_of(sends, "dist.isend"))
    assert found.problem == "the tensor of send(dst=1, tag=2) in group '0' was changed before its data left"


def test_a_tensor_that_is_changed_after_the_wait_is_left_alone() -> None:
    assert run(partial(sends, waits=True), world_size=2).ok


def test_strict_worlds_say_it_themselves() -> None:
    result = simdist.run(grouped(partial(sends, waits=False)), world_size=2, judges=["buffers"], strict=True)

    assert not result.ok
    assert result.findings == ()


def test_sends_between_devices_are_left_alone() -> None:
    def body() -> None:
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        torch.cuda.set_device(rank)
        given = torch.zeros(4, device="cuda")
        work = dist.isend(given, 1) if rank == 0 else dist.irecv(given, 0)
        assert work is not None
        work.wait()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    assert simdist.run(body, world_size=2, backend="nccl", judges=True).ok


def sums(rank: int, *, waits: bool) -> None:
    given = torch.full((4,), float(rank))
    work = dist.all_reduce(given, async_op=True)
    assert work is not None
    if waits:
        work.wait()
    if rank == 1:
        given += 1
    if not waits:
        work.wait()


def test_a_tensor_that_is_changed_while_a_collective_holds_it_is_found() -> None:
    found = only_finding(run(partial(sums, waits=False)))

    assert (found.judge, found.rank, found.where) == ("buffers", 1, line_of(sums, "dist.all_reduce"))
    assert found.problem == "the tensor of all_reduce #0 in group '0' was changed before it was read"


def test_a_tensor_that_is_changed_after_the_collective_is_left_alone() -> None:
    assert run(partial(sums, waits=True)).ok


def test_what_a_collective_fills_may_be_anything_before() -> None:
    def gathers(rank: int) -> None:
        parts = [torch.zeros(2) for _ in range(3)]
        work = dist.all_gather(parts, torch.full((2,), float(rank)), async_op=True)
        assert work is not None
        parts[0].fill_(7.0)
        work.wait()

    assert run(gathers).ok


def gathered(rank: int, *, given: float, parts: Callable[[], list[torch.Tensor]]) -> None:
    dist.all_gather(parts(), torch.full((2,), given * rank))


@pytest.mark.parametrize("given", [1.0, 0.0])
def test_memory_that_a_collective_fills_for_several_ranks_is_found(given: float) -> None:
    overlapping = torch.zeros(4)
    bodies = [
        partial(gathered, given=given, parts=lambda: [torch.zeros(2)] * 3),
        partial(gathered, given=given, parts=lambda: [overlapping[:2], overlapping[1:3], torch.zeros(2)]),
    ]
    for body in bodies:
        result = run(body, "buffers")
        if not given:  # nothing is lost
            assert result.ok
            continue
        found = only_finding(result)
        assert found.problem == "all_gather #0 in group '0' fills the same memory for several ranks"
        assert (found.rank, found.where) == (0, line_of(gathered, "dist.all_gather"))


def test_a_list_that_is_filled_up_with_one_tensor_is_left_alone() -> None:
    def body(rank: int) -> None:  # as optimizers do that share few parameters among many ranks
        rest = torch.full((2,), float(rank))
        parts = [torch.ones(2), rest, rest]
        dist.all_gather(parts, parts[rank])

    assert run(body, "buffers").ok


def test_parts_of_one_tensor_that_lie_side_by_side_are_left_alone() -> None:
    assert run(partial(gathered, given=1.0, parts=lambda: list(torch.zeros(6).chunk(3))), "buffers").ok
