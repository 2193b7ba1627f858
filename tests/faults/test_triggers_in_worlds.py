"""Points, repetition, probabilities and faults that come after others, in simulated worlds."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash, Hang, LinkDelay, Partition, Raise, SlowRank, StoreDelay, StoreLost
from simdist.result import RunResult
from tests.faults.programs import MS, run, statuses


def struck(result: RunResult) -> list[tuple[int, ...]]:
    return [fault.struck_ns for fault in result.faults]


def polls(count: int = 6) -> list[str]:
    """Call an all-reduce until it works, `count` times over."""
    dist.init_process_group("gloo")
    seen = []
    for index in range(count):
        simdist.point("asked")
        while True:
            try:
                dist.all_reduce(torch.ones(1))
            except ConnectionError:
                seen.append(f"failed {index}")
            else:
                break
    return seen


def sleeps(count: int = 5) -> list[int]:
    """Sleep a millisecond at a time; returns when each sleep ended."""
    ends = []
    for index in range(count):
        simdist.step(index)
        time.sleep(0.001)
        ends.append(time.monotonic_ns())
    return ends


def test_a_point_is_where_the_program_passes() -> None:
    result = simdist.run(polls, world_size=2, faults=[Crash(rank=1, at_point="asked", nth=3)])

    assert statuses(result) == ["raised", "killed"]
    assert [rank.operations for rank in result.ranks] == [3, 2]


def test_an_exception_comes_out_of_a_point() -> None:
    def program() -> str:
        try:
            simdist.point("here")
        except OSError as error:
            return str(error)
        return "nothing"

    fault = Raise(rank=1, at_point="here", error="OSError", message="no space left")

    assert simdist.run(program, world_size=2, faults=[fault]).values == ["nothing", "no space left"]


def test_a_point_outside_a_simulation_does_nothing() -> None:
    simdist.point("nowhere")


def test_every_strikes_again_and_again() -> None:
    fault = Raise(rank=1, op="all_reduce", nth=2, every=3, error="ConnectionError")
    result = simdist.run(polls, world_size=2, args=(6,), faults=[fault])

    # Calls 2, 5 and 8 of the rank fail; the program repeats each failed call.
    assert result.values == [[], ["failed 1", "failed 3", "failed 5"]]
    assert result.ok


def test_every_step_from_one_on() -> None:
    result = simdist.run(sleeps, world_size=1, faults=[Hang(rank=0, at_step=1, every=2, duration_ns=MS)])

    assert struck(result) == [(1 * MS, 4 * MS)]
    assert result.values == [[1 * MS, 3 * MS, 4 * MS, 6 * MS, 7 * MS]]


def test_a_period_strikes_again_and_again_in_time() -> None:
    fault = Hang(rank=0, at_ns=500_000, period_ns=2 * MS, duration_ns=250_000)
    result = simdist.run(sleeps, world_size=1, faults=[fault])

    assert struck(result) == [(500_000, 2_500_000, 4_500_000)]
    assert result.virtual_time_ns == 5_000_000


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_a_period_ends_where_nothing_else_can_happen(backend: str) -> None:
    def stuck() -> None:
        dist.init_process_group(backend, world_size=2, rank=int(os.environ["RANK"]))
        if dist.get_rank() == 0:
            dist.recv(torch.ones(1), 1)
        else:
            dist.recv(torch.ones(1), 0)

    faults = [Hang(rank=rank, at_ns=MS, period_ns=60_000 * MS, duration_ns=MS // 2) for rank in (0, 1)]
    result = simdist.run(stuck, world_size=2, backend=backend, faults=faults)

    if backend == "sim":
        assert statuses(result) == ["hung", "hung"]
        assert max(map(len, struck(result))) <= 3
    else:
        assert statuses(result) == ["raised", "raised"]
        assert result.virtual_time_ns >= 1_800_000 * MS
        assert max(map(len, struck(result))) == 31  # the last one within the millisecond by which Gloo is late


def test_a_probability_is_drawn_from_the_seed_and_the_faults_own_words() -> None:
    flaky = Raise(rank=1, op="all_reduce", every=1, probability=0.25, error="ConnectionError", optional=True)
    other = SlowRank(rank=0, delay_ns=5)

    def strikes(*faults: simdist.faults.Fault, seed: int = 0) -> list[str]:
        found: list[str] = simdist.run(polls, world_size=2, args=(40,), faults=faults, seed=seed).values[1]
        return found

    first = strikes(flaky)
    assert 3 <= len(first) <= 30
    assert strikes(flaky) == first
    assert strikes(other, flaky) == first  # other faults change nothing
    assert strikes(flaky, seed=1) != first


def test_equal_faults_draw_their_own_numbers() -> None:
    flaky = Hang(rank=0, at_step=0, every=1, probability=0.5, duration_ns=1)
    result = simdist.run(sleeps, world_size=1, args=(30,), faults=[flaky, flaky])

    one, other = struck(result)
    assert one
    assert other
    assert len(set(one) ^ set(other)) > 5


def test_each_life_draws_its_own_numbers() -> None:
    def program() -> None:
        for index in range(40):
            simdist.step(index)
            time.sleep(0.001)
        raise RuntimeError

    flaky = Hang(rank=0, at_step=0, every=1, probability=0.5, duration_ns=1, life=None)
    result = simdist.run(program, world_size=1, max_restarts=1, faults=[flaky])

    begun = next(event.time_ns for event in result.events if event.kind == "restart")
    lives = [[], []]  # type: list[list[int]]
    steps = [event.time_ns for event in result.events if event.kind == "step"]
    for index, moment in enumerate(steps):
        lives[moment >= begun].append(index % 40 if moment in result.faults[0].struck_ns else -1)
    assert lives[0] != lives[1]


def test_one_crash_is_followed_by_another() -> None:
    faults = [Crash(rank=1, at_step=1, name="first"), Crash(rank=2, after="first", at_ns=MS // 2)]
    result = run(*faults)

    first, second = struck(result)
    assert second == (first[0] + MS // 2,)
    assert statuses(result) == ["raised", "killed", "killed"]


def test_without_a_trigger_of_its_own_it_strikes_at_that_instant() -> None:
    result = run(Hang(rank=1, at_ns=MS, duration_ns=MS, name="pause"), Crash(rank=2, after="pause"))

    assert struck(result) == [(MS,), (MS,)]


def test_operations_count_from_the_strike_of_the_other_fault() -> None:
    faults = [
        Hang(rank=1, at_step=1, duration_ns=1, name="pause"),
        Crash(rank=1, op="all_reduce", nth=2, after="pause"),
    ]
    result = run(*faults, count=5)

    assert result.ranks[1].last_operation == "all_reduce #2 in group '0'"
    assert result.ranks[1].status == "killed"


def test_links_and_stores_go_wrong_after_a_rank_has() -> None:
    pause = Hang(rank=0, at_step=1, duration_ns=1, name="pause")
    faults = [
        Partition(groups=((0,), (1, 2)), start_ns=MS, until_ns=3 * MS, after="pause", name="split"),
        LinkDelay(src=0, dst=1, delay_ns=MS, after="split"),
        SlowRank(rank=2, delay_ns=MS, after="pause"),
        StoreDelay(delay_ns=1, after="pause"),
        StoreLost(at_ns=5 * MS, after="pause", optional=True),
    ]
    result = run(pause, *faults, count=4)

    begun = result.faults[0].struck_ns[0]
    assert struck(result) == [(begun,), (begun + MS,), (begun + MS,), (begun,), (begun,), (begun + 5 * MS,)]
    ends = [event.time_ns for event in result.events if event.data.get("text") == "the network heals: ranks 0 | 1, 2"]
    assert ends == [begun + 3 * MS]


def test_it_comes_in_a_later_life_than_the_fault_it_waits_for() -> None:
    faults = [Crash(rank=0, at_step=1, name="first"), Crash(rank=1, at_step=1, life=1, after="first")]
    result = run(*faults, max_restarts=2)

    assert result.restarts == 2
    assert result.ok


def test_it_never_strikes_if_the_other_never_does() -> None:
    result = run(Crash(rank=0, at_step=9, name="first", optional=True), Crash(rank=1, at_step=1, after="first"))

    assert statuses(result) == ["returned"] * 3
    assert struck(result) == [(), ()]
    assert [fault.ok for fault in result.faults] == [True, False]
