"""A rank runs two collectives of a Gloo group at a time, in the order of its calls: Gloo has two threads."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values

LIMIT = timedelta(seconds=2)


def _gather(sizes: tuple[int, ...], group: dist.ProcessGroup | None = None) -> list[bool]:
    """Call all, wait for the last one only, and report which have brought what they gather."""
    outputs = [torch.zeros(2 * size) for size in sizes]
    works = [
        dist.all_gather(list(output.chunk(2)), torch.ones(len(output) // 2), group=group, async_op=True)
        for output in outputs
    ]
    assert works[-1] is not None
    works[-1].wait()
    there = [bool(output.all()) for output in outputs]
    for work in works:
        assert work is not None
        work.wait()
    return there


@pytest.mark.parametrize(
    ("sizes", "there"),
    [
        ((500, 5, 500, 5, 500, 5, 5), [True] * 7),
        ((5, 5, 100_000, 5), [True, True, False, True]),
        ((2_000_000, 5, 5, 5, 5), [False, True, True, True, True]),
    ],
)
def test_who_waits_for_the_last_finds_at_most_one_other_undone(sizes: tuple[int, ...], there: list[bool]) -> None:
    def body() -> list[bool]:
        dist.init_process_group("gloo")
        return _gather(sizes)

    assert values(body, 2) == [there, there]


def test_each_group_has_threads_of_its_own() -> None:
    def body() -> list[bool]:
        dist.init_process_group("gloo")
        other = dist.new_group()
        late = [dist.all_reduce(torch.ones(2_000_000), async_op=True) for _ in range(2)]
        found = [*_gather((5, 5), other), *[work is not None and work.is_completed() for work in late]]
        dist.barrier()
        return found

    assert values(body, 2) == [[True, True, False, False]] * 2


def _wait_for_three(limit: timedelta) -> float:
    """Rank 1 joins two collectives after 1.5 s and the third after 2.5 s; rank 0 has called all three before."""
    dist.init_process_group("gloo", timeout=limit)
    dist.barrier()
    tensors = [torch.ones(4) for _ in range(3)]
    begin = time.monotonic()
    if dist.get_rank() == 1:
        time.sleep(1.5)
        dist.all_reduce(tensors[0])
        dist.all_reduce(tensors[1])
        time.sleep(1)
        dist.all_reduce(tensors[2])
    else:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        assert works[2] is not None
        works[2].wait()
    return round(time.monotonic() - begin, 1)


def test_the_time_limit_counts_from_its_turn() -> None:
    assert values(lambda: _wait_for_three(LIMIT), 2) == [2.5, 2.5]


def test_a_barrier_waits_for_those_before_it_and_their_turns() -> None:
    def body() -> list[bool]:
        dist.init_process_group("gloo")
        works = [dist.all_reduce(torch.ones(10_000), async_op=True) for _ in range(5)]
        dist.barrier()
        return [work is not None and work.is_completed() for work in works]

    assert values(body, 3) == [[True] * 5] * 3


def test_a_rank_that_waits_for_a_turn_is_reported_to_wait_for_the_others() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(4)]
            assert works[3] is not None
            works[3].wait()
        else:
            dist.recv(torch.ones(4), 0)

    result = simdist.run(body, world_size=2)

    assert [type(each.exception).__name__ for each in result.ranks] == ["RuntimeError"] * 2
    assert result.deadlock is not None
    assert "rank 0 -> rank 1 -> rank 0" in str(result.deadlock)


def test_works_without_a_turn_fail_when_their_peer_is_gone() -> None:
    def body() -> list[str]:
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            return []
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(5)]
        said = []
        for work in works:
            assert work is not None
            try:
                work.wait()
            except RuntimeError as error:
                said.append(str(error).partition("]")[2].split(" [")[0])
        return said

    assert values(body, 2)[0] == [" Connection closed by peer"] * 5
