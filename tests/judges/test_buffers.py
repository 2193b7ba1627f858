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
