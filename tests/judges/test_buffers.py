"""A tensor that is changed while a send still holds it is found, on whichever schedule it would do harm."""

from __future__ import annotations

from functools import partial

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
