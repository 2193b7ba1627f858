from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash, Fault, Hang
from simdist.result import RunResult
from tests.faults.programs import MS, ends, events_of, statuses

MONITOR_NS = 100 * MS  # the interval at which torchrun's agent looks
ROUND_NS = 1_000 * MS  # until the next life begins


def sleeper() -> tuple[int, str]:
    """Sleep for 350 ms; returns when the rank began, and in which life."""
    begin_ns = time.monotonic_ns()
    time.sleep(0.35)
    return begin_ns, os.environ["TORCHELASTIC_RESTART_COUNT"]


def run(
    *faults: Fault, body: Callable[[], Any] = sleeper, max_restarts: int = 1, args: Sequence[Any] = ()
) -> RunResult:
    return simdist.run(body, world_size=3, args=args, max_restarts=max_restarts, faults=faults)


@pytest.mark.parametrize(
    ("died_ns", "begin_ns"),
    [
        (5 * MS, MONITOR_NS + ROUND_NS),
        (99_999_999, MONITOR_NS + ROUND_NS),
        (100 * MS, 2 * MONITOR_NS + ROUND_NS),
        (250 * MS, 3 * MONITOR_NS + ROUND_NS),
    ],
)
def test_after_a_crash_the_agent_stops_everyone_and_starts_a_new_life(died_ns: int, begin_ns: int) -> None:
    result = run(Crash(rank=1, at_ns=died_ns))

    assert result.ok
    assert result.restarts == 1
    assert result.values == [(begin_ns, "1")] * 3
    assert [rank.lives for rank in result.ranks] == [2, 2, 2]
    first_life = [event for event in events_of(result, "exit") if event.data["life"] == 0]
    assert [(event.time_ns, event.rank, event.data["exit_code"]) for event in first_life] == [
        (died_ns, 1, -9),
        (begin_ns - ROUND_NS, 0, -15),
        (begin_ns - ROUND_NS, 2, -15),
    ]
    (restart,) = events_of(result, "restart")
    assert (restart.time_ns, restart.rank, restart.data) == (begin_ns, -1, {"life": 1})


def raises(rank: int) -> None:
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("x")


def leaves(rank: int) -> None:
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)


def leaves_well(rank: int) -> None:
    if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(0)


@pytest.mark.parametrize(("fails", "restarts"), [(raises, 1), (leaves, 1), (leaves_well, 0)])
def test_every_kind_of_failure_restarts_and_a_good_end_does_not(fails: Callable[[int], None], restarts: int) -> None:
    def body() -> int:
        time.sleep(0.001)
        fails(int(os.environ["RANK"]))
        time.sleep(0.3)
        return 5

    result = run(body=body)

    assert result.restarts == restarts
    assert result.ok


def test_ranks_that_have_returned_are_started_again_too() -> None:
    started = []

    def body() -> None:
        started.append((os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]))
        if os.environ["RANK"] == "0":
            time.sleep(0.01)

    result = run(Crash(rank=0, at_ns=5 * MS), body=body)

    assert result.ok
    assert started == [(life, rank) for life in "01" for rank in "012"]


def test_two_failures_before_the_agent_looks_are_one_restart() -> None:
    result = run(Crash(rank=0, at_ns=5 * MS), Crash(rank=2, at_ns=80 * MS), max_restarts=5)

    assert result.restarts == 1
    assert result.ok


def test_the_restarts_can_be_used_up() -> None:
    result = run(Crash(rank=1, at_step=0, life=None), body=stepper, max_restarts=2)

    assert result.restarts == 2
    assert [event.data["life"] for event in events_of(result, "restart")] == [1, 2]
    begin_ns = 2 * (MONITOR_NS + ROUND_NS)
    assert ends(result) == [
        ("killed", -15, begin_ns + MONITOR_NS),
        ("killed", -9, begin_ns),
        ("killed", -15, begin_ns + MONITOR_NS),
    ]
    assert [rank.lives for rank in result.ranks] == [3, 3, 3]


def stepper() -> None:
    simdist.step(0)
    time.sleep(1)


def test_a_restart_is_not_needed_when_everything_is_well() -> None:
    result = run(max_restarts=3)

    assert result.restarts == 0
    assert result.values == [(0, "0")] * 3
    assert result.virtual_time_ns == 350 * MS


def test_without_restarts_nobody_stops_the_others() -> None:
    result = run(Crash(rank=1, at_ns=5 * MS), max_restarts=0)

    assert ends(result) == [("returned", 0, 350 * MS), ("killed", -9, 5 * MS), ("returned", 0, 350 * MS)]


def test_a_fault_belongs_to_the_first_life_or_to_the_one_it_names() -> None:
    first = Crash(rank=0, at_step=0)
    second = Crash(rank=1, at_step=0, life=1)
    result = run(first, second, body=stepper, max_restarts=3)

    assert result.restarts == 2
    assert [(event.rank, event.data["life"]) for event in events_of(result, "fault")] == [(0, 0), (1, 1)]


def test_a_fault_of_a_later_life_whose_time_is_over_strikes_at_its_begin() -> None:
    result = run(Crash(rank=0, at_ns=5 * MS), Crash(rank=1, at_ns=7 * MS, life=1), max_restarts=2)

    assert [(event.time_ns, event.rank) for event in events_of(result, "fault")] == [
        (5 * MS, 0),
        (MONITOR_NS + ROUND_NS, 1),
    ]


def test_operations_are_counted_anew_in_each_life() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        for _ in range(3):
            dist.barrier()

    result = run(Crash(rank=0, nth=2), Crash(rank=0, nth=3, life=1), body=body, max_restarts=2)

    assert [
        len([e for e in events_of(result, "issue", ranks=[0]) if lo <= e.time_ns < hi]) for lo, hi in lives(result)
    ] == [
        1,
        2,
        3,
    ]


def lives(result: RunResult) -> list[tuple[int, int]]:
    """Return when each life began and ended."""
    starts = [0, *(event.time_ns for event in events_of(result, "restart"))]
    return list(zip(starts, [*starts[1:], result.virtual_time_ns + 1], strict=True))


def test_a_new_life_meets_at_a_new_store() -> None:
    seen = []

    def body() -> None:
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        life = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if dist.get_rank() == 0:
            seen.append((life, os.environ["MASTER_PORT"], store.check(["marker"])))
            store.set("marker", life)
        dist.barrier()
        time.sleep(0.3)

    result = run(Crash(rank=2, at_ns=50 * MS), body=body)

    assert result.ok
    assert [(life, there) for life, _, there in seen] == [("0", False), ("1", False)]
    assert seen[0][1] != seen[1][1]


def test_a_new_life_has_collectives_of_its_own() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        time.sleep(0.3)
        dist.all_reduce(total)
        return total.item()

    result = run(Crash(rank=2, at_ns=50 * MS), body=body)

    assert result.values == [9.0] * 3


def test_a_rank_that_catches_everything_is_stopped_all_the_same() -> None:
    def body() -> str:
        while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            try:
                dist.init_process_group("gloo")
                while True:
                    dist.barrier()
            except BaseException:
                time.sleep(0.01)
        return "second life"

    assert run(Crash(rank=2, at_ns=50 * MS), body=body).values == ["second life"] * 3


def test_a_hung_rank_is_stopped_when_another_fails() -> None:
    result = run(Hang(rank=0, at_ns=1 * MS), Crash(rank=1, at_ns=5 * MS))

    assert result.ok
    assert result.restarts == 1


def test_a_hang_alone_restarts_nobody() -> None:
    result = run(Hang(rank=0, at_ns=1 * MS))

    assert statuses(result) == ["hung", "returned", "returned"]
    assert result.restarts == 0


def test_the_result_is_that_of_the_last_life() -> None:
    def body() -> str:
        life = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("life", life)
        dist.init_process_group("gloo")
        dist.barrier()
        time.sleep(0.3)
        return life

    result = run(Crash(rank=2, at_ns=50 * MS), body=body)

    assert result.values == ["1", "1", "1"]
    assert [rank.stdout for rank in result.ranks] == ["life 1\n"] * 3
    assert [rank.operations for rank in result.ranks] == [2, 2, 2]
