"""`simdist.spawn` does the same as `torch.multiprocessing.spawn`, with the same errors."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, ProcessExitedException, ProcessRaisedException

import simdist
from simdist.faults import Crash


def joins(rank: int, size: int, log: list[Any]) -> None:
    """Join a group with explicit rank and size, as under torch.multiprocessing."""
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=size)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    log.append((rank, total.item()))


def test_spawn_calls_the_function_with_each_rank() -> None:
    log: list[Any] = []

    assert simdist.spawn(joins, args=(3, log), nprocs=3) is None
    assert sorted(log) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_spawn_accepts_what_torchs_accepts() -> None:
    seen: list[int] = []

    simdist.spawn(seen.append, (), 2, True, False, "fork")

    assert seen == [0, 1]


def spawned_on_a_device(rank: int, world_size: int) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29512")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    tensor = torch.full((2,), float(rank), device="cuda")
    dist.all_reduce(tensor)
    print(torch.cuda.device_count(), tensor.device, tensor.tolist())
    dist.destroy_process_group()


def test_spawned_processes_have_a_device_each_over_nccl() -> None:
    context = simdist.spawn(spawned_on_a_device, args=(2,), nprocs=2, join=False, backend="nccl")

    assert context is not None
    assert context.join()
    assert context.result is not None
    assert [rank.stdout for rank in context.result.ranks] == [f"2 cuda:{rank} [1.0, 1.0]\n" for rank in range(2)]


def test_spawn_without_join_runs_the_world_when_it_is_joined() -> None:
    log: list[Any] = []

    context = simdist.spawn(joins, args=(2, log), nprocs=2, join=False)

    assert context is not None
    assert log == []
    assert len(set(context.pids())) == 2
    assert context.join()
    assert len(log) == 2
    assert context.join()
    assert len(log) == 2
    assert context.result is not None
    assert context.result.ok


def spawn_fails(body: Callable[[int], Any], nprocs: int = 3) -> ProcessException:
    with pytest.raises(ProcessException) as caught:
        simdist.spawn(body, nprocs=nprocs)
    return caught.value


def test_spawn_raises_what_torchs_raises_for_an_exception() -> None:
    def fails(rank: int) -> None:
        time.sleep(rank)
        if rank == 1:
            raise ValueError("bad batch")
        time.sleep(60)

    error = spawn_fails(fails)

    assert type(error) is ProcessRaisedException
    assert error.error_index == 1
    assert str(error).startswith(
        "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last)"
    )
    assert str(error).endswith("ValueError: bad batch\n")


@pytest.mark.parametrize(
    ("leave", "text", "code", "name"),
    [
        (lambda: sys.exit(5), "process 1 terminated with exit code 5", 5, None),
        (lambda: os._exit(6), "process 1 terminated with exit code 6", 6, None),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "process 1 terminated with signal SIGSEGV", -11, "SIGSEGV"),
    ],
)
def test_spawn_raises_what_torchs_raises_for_an_exit(
    leave: Callable[[], None], text: str, code: int, name: str | None
) -> None:
    def leaves(rank: int) -> None:
        time.sleep(rank)
        if rank == 1:
            leave()
        time.sleep(60)

    error = spawn_fails(leaves)

    assert type(error) is ProcessExitedException
    assert (str(error), error.error_index, error.exit_code, error.signal_name) == (text, 1, code, name)


def test_spawn_stops_the_others_when_one_fails() -> None:
    ended: list[int] = []

    def fails(rank: int) -> None:
        if rank == 0:
            raise ValueError("x")
        time.sleep(60)
        ended.append(rank)

    context = simdist.spawn(fails, nprocs=3, join=False)
    assert context is not None
    with pytest.raises(ProcessRaisedException):
        context.join()

    assert ended == []
    assert context.result is not None
    assert [rank.exit_code for rank in context.result.ranks] == [1, -15, -15]


def test_what_spawned_processes_print_appears_as_under_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(rank: int) -> None:
        print("rank", rank)
        print("no end", rank, file=sys.stderr, end="")
        if rank == 1:
            raise ValueError("handed to the parent, and printed by nobody")

    spawn_fails(prints, nprocs=2)

    assert capsys.readouterr() == ("rank 0\nrank 1\n", "no end 0\nno end 1\n")


def test_spawn_takes_faults_and_a_seed() -> None:
    with pytest.raises(ProcessExitedException, match="process 0 terminated with signal SIGKILL"):
        simdist.spawn(lambda rank: time.sleep(1), nprocs=2, seed=3, faults=[Crash(rank=0, at_ns=5)])


def test_processes_that_wait_for_each_other_for_ever_end_a_spawn() -> None:
    def meets(rank: int) -> None:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:23456", rank=rank, world_size=2)
        dist.recv(torch.zeros(1), 1 - rank)

    error = spawn_fails(meets, nprocs=2)

    assert type(error) is ProcessRaisedException
    assert "Timed out waiting 1800000ms for recv operation to complete" in str(error)
