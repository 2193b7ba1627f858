"""The errors of strict runs, with the line that caused them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import MismatchError, StrictError
from tests.c10d.worlds import values


def start() -> int:
    dist.init_process_group("gloo")
    return dist.get_rank()


def strided_tensor() -> None:
    start()
    dist.all_reduce(torch.ones(8)[::2])


def nan_in_a_maximum() -> None:
    start()
    dist.all_reduce(torch.tensor([1.0, float("nan")]), dist.ReduceOp.MAX)


def buffer_changed_after_isend() -> None:
    tensor = torch.ones(4)
    if start() == 0:
        work = dist.isend(tensor, 1)
        assert work is not None
        tensor.fill_(3)
        work.wait()
    else:
        time.sleep(1)
        dist.recv(tensor, 0)


def nobody_waits() -> None:
    start()
    dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()
    dist.destroy_process_group()


def group_left_open() -> None:
    start()


def send_without_partner() -> None:
    if start() == 0:
        dist.isend(torch.ones(2), 1)


@pytest.mark.parametrize(
    ("program", "reported"),
    [
        (strided_tensor, "strides [2] has gaps in memory"),
        (nan_in_a_maximum, "the tensor holds a NaN"),
        (buffer_changed_after_isend, "rank 0 changed the tensor of its send(dst=1, tag=0)"),
        (nobody_waits, "no rank waited for all_reduce #0 in group '0', issued at test_strict.py:"),
        (group_left_open, "group '0' was never destroyed"),
        (send_without_partner, "send(dst=1, tag=0) in group '0' never met its partner"),
    ],
)
def test_a_strict_run_names_it_and_an_ordinary_one_does_not_mind(program: Callable[[], None], reported: str) -> None:
    strict = simdist.run(program, world_size=2, strict=True)
    ordinary = simdist.run(program, world_size=2)

    error = strict.ranks[0].exception
    assert isinstance(error, StrictError)
    assert reported in str(error)
    assert ordinary.ranks[0].ok


@pytest.mark.parametrize(
    ("call", "named"),
    [(dist.barrier, "barrier()"), (lambda: dist.broadcast(torch.ones(2), 0), "broadcast(float32[2], root=0)")],
    ids=["barrier", "broadcast"],
)
def test_ranks_that_disagree_are_named_with_their_calls(call: Callable[[], object], named: str) -> None:
    def main() -> None:
        if start() == 0:
            call()
        else:
            dist.all_reduce(torch.ones(2))

    result = simdist.run(main, world_size=2, strict=True)

    for rank in result.ranks:
        assert isinstance(rank.exception, MismatchError)
        assert "ranks do not agree on collective #0" in str(rank.exception)
        assert f"rank 0 called {named} at test_strict.py:" in str(rank.exception)
        assert "rank 1 called all_reduce(float32[2], sum) at test_strict.py:" in str(rank.exception)


def test_another_shape_of_the_same_size_is_a_mismatch_only_if_strict() -> None:
    def main() -> None:
        dist.all_reduce(torch.ones(2, 3) if start() else torch.ones(6))
        dist.destroy_process_group()

    assert not simdist.run(main, world_size=2, strict=True).ok
    assert simdist.run(main, world_size=2).ok


def test_a_clean_program_passes() -> None:
    def main() -> list[float]:
        rank = start()
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        other = torch.zeros(4)
        pair = [dist.isend(tensor, 1 - rank), dist.irecv(other, 1 - rank)]
        for message in pair:
            assert message is not None
            message.wait()
        dist.destroy_process_group()
        return other.tolist()

    assert values(main, 2, strict=True) == [[4.0] * 4] * 2


def test_the_ideal_backend_is_strict_by_default() -> None:
    assert not simdist.run(group_left_open, world_size=2, backend="sim").ok
    assert simdist.run(group_left_open, world_size=2, backend="sim", strict=False).ok


def test_who_waits_for_a_coalesced_operation_has_waited_for_its_parts() -> None:
    def main() -> None:
        group: Any = (start(), dist.group.WORLD)[1]
        outputs = [torch.zeros(4), torch.zeros(6)]
        group.allgather_into_tensor_coalesced(outputs, [torch.ones(2), torch.ones(3)]).wait()
        dist.destroy_process_group()

    simdist.run(main, world_size=2, strict=True).raise_for_failure()


def test_a_coalesced_operation_nobody_waits_for_is_named() -> None:
    def main() -> None:
        group: Any = (start(), dist.group.WORLD)[1]
        group.allgather_into_tensor_coalesced([torch.zeros(4)], [torch.ones(2)])
        dist.barrier()
        dist.destroy_process_group()

    error = simdist.run(main, world_size=2, strict=True).ranks[0].exception

    assert "no rank waited for all_gather #0" in str(error)


def test_a_coalesced_operation_whose_parts_fail_at_once_fails() -> None:
    def main() -> None:
        group: Any = (start(), dist.group.WORLD)[1]
        if dist.get_rank() == 1:
            return
        time.sleep(1)  # the peer is gone by now, and every part fails where it is issued
        group.allgather_into_tensor_coalesced([torch.zeros(4)], [torch.ones(2)]).wait()

    error = simdist.run(main, world_size=2).ranks[0].exception

    assert "Connection closed by peer" in str(error)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_ranks_that_disagree_asynchronously_learn_who_called_what(backend: str, ranks: int) -> None:
    def program() -> None:
        rank = start()
        tensor = torch.ones(4)
        odd = rank == 1
        work = dist.broadcast(tensor, 0, async_op=True) if odd else dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    result = simdist.run(program, world_size=ranks, backend=backend, strict=True)

    for rank in result.ranks:
        assert isinstance(rank.exception, MismatchError)
        lines = str(rank.exception).splitlines()
        assert lines[0] == "ranks do not agree on collective #0 in group '0':"
        # Calls before it or at the same time; the line is that of the call, not that of the wait.
        assert len(lines) == 1 + max(2, rank.rank + 1)
        assert lines[2].startswith("  rank 1 called broadcast(float32[4], root=0) at test_strict.py:")
        assert "0x" not in str(rank.exception)


def test_work_that_torch_leaves_unwaited_is_not_laid_at_the_program_s_door() -> None:
    def program() -> None:
        rank = start()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        with model.join():
            for _ in range(3 + rank):
                model(torch.ones(2, 4)).sum().backward()
        del model
        dist.destroy_process_group()

    result = simdist.run(program, world_size=2, strict=True)

    result.raise_for_failure()
