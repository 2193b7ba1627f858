from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simdist
from simdist.errors import FaultError
from simdist.faults import (
    Crash,
    Fault,
    Hang,
    LinkDelay,
    Partition,
    Raise,
    Signal,
    SlowRank,
    StoreAway,
    StoreDelay,
    StoreLost,
    problems_of,
)
from tests.strategies import faults, world_sizes

WORLD = 4


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Crash(rank=0), "faults[0]: no trigger; give a time, a step, a point or an operation"),
        (Hang(rank=0, duration_ns=5), "faults[0]: no trigger; give a time, a step, a point or an operation"),
        (Crash(rank=4, at_ns=1), "faults[0].rank: rank 4 is outside the world of 4 ranks"),
        (Crash(rank=-1, at_ns=1), "faults[0].rank: rank -1 is outside the world of 4 ranks"),
        (SlowRank(rank=9, delay_ns=1), "faults[0].rank: rank 9 is outside the world of 4 ranks"),
        (LinkDelay(src=4, dst=0, delay_ns=1), "faults[0].src: rank 4 is outside the world of 4 ranks"),
        (LinkDelay(src=0, dst=7, delay_ns=1), "faults[0].dst: rank 7 is outside the world of 4 ranks"),
        (Partition(groups=((0, 5), (1,))), "faults[0].groups: rank 5 is outside the world of 4 ranks"),
        (
            Crash(rank=0, at_ns=1, at_step=2),
            "faults[0]: a time and a step, point or operation are two triggers; give one of them",
        ),
        (
            Crash(rank=0, at_ns=1, op="barrier"),
            "faults[0]: a time and a step, point or operation are two triggers; give one of them",
        ),
        (
            Crash(rank=0, op="barrier", when="while"),  # type: ignore[arg-type]
            "faults[0].when: unknown 'while'; known: before, during, after",
        ),
        (Crash(rank=0, at_ns=1, when="after"), "faults[0].when: 'after' needs an operation; give op or nth"),
        (Hang(rank=0, at_step=1, when="during"), "faults[0].when: 'during' needs an operation; give op or nth"),
        (Crash(rank=0, nth=0), "faults[0].nth: 0 is not a count; the first operation is 1"),
        (
            Crash(rank=0, at_ns=1, signal="SIGKIL"),
            "faults[0].signal: unknown signal 'SIGKIL'; expected a name such as 'SIGKILL'",
        ),
        (Crash(rank=0, at_ns=-3), "faults[0].at_ns: -3 ns lies before the start"),
        (SlowRank(rank=0, delay_ns=-1), "faults[0].delay_ns: -1 ns lies before the start"),
        (Hang(rank=0, at_ns=1, duration_ns=-1), "faults[0].duration_ns: -1 ns lies before the start"),
        (
            SlowRank(rank=0),
            "faults[0].delay_ns: nothing makes the rank late; give delay_ns, jitter_ns, or tail_share and tail_ns",
        ),
        (
            SlowRank(rank=0, delay_ns=1, tail_share=0.1),
            "faults[0].tail_ns: a share of 0.1 starts later, and nothing says by how much",
        ),
        (
            SlowRank(rank=0, delay_ns=1, tail_ns=1),
            "faults[0].tail_share: no operation starts later by tail_ns; give the share of those that do",
        ),
        (
            SlowRank(rank=0, tail_share=1.5, tail_ns=1),
            "faults[0].tail_share: 1.5 is no share; expected a number from 0 to 1",
        ),
        (StoreDelay(), "faults[0].delay_ns: no request takes longer; give delay_ns or jitter_ns"),
        (StoreDelay(jitter_ns=-1), "faults[0].jitter_ns: -1 ns lies before the start"),
        (StoreAway(start_ns=3, until_ns=3), "faults[0].until_ns: ends before it starts"),
        (SlowRank(rank=0, jitter_ns=-1), "faults[0].jitter_ns: -1 ns lies before the start"),
        (SlowRank(rank=0, delay_ns=1, start_ns=5, until_ns=5), "faults[0].until_ns: ends before it starts"),
        (LinkDelay(src=0, dst=1, delay_ns=1, start_ns=-5), "faults[0].start_ns: -5 ns lies before the start"),
        (Partition(groups=((0,), (1,)), start_ns=5, until_ns=4), "faults[0].until_ns: ends before it starts"),
        (Raise(rank=4, nth=1), "faults[0].rank: rank 4 is outside the world of 4 ranks"),
        (Raise(rank=0), "faults[0]: no trigger; give a time, a step, a point or an operation"),
        (Raise(rank=0, at_ns=5), "faults[0].at_ns: no program raises at a time; give an operation, a step or a point"),
        (
            Raise(rank=0, nth=1, when="after"),
            "faults[0].when: 'after' is too late to raise; the exception comes in place of the operation",
        ),
        (StoreDelay(rank=4, delay_ns=1), "faults[0].rank: rank 4 is outside the world of 4 ranks"),
        (StoreDelay(delay_ns=-1), "faults[0].delay_ns: -1 ns lies before the start"),
        (StoreDelay(delay_ns=1, start_ns=5, until_ns=5), "faults[0].until_ns: ends before it starts"),
        (StoreLost(at_ns=-1), "faults[0].at_ns: -1 ns lies before the start"),
        (Partition(groups=((0, 1),)), "faults[0].groups: a partition needs at least two groups"),
        (Partition(groups=((0, 1), (1, 2))), "faults[0].groups: rank 1 is in more than one group"),
    ],
)
def test_what_does_not_fit_is_reported_in_one_line(fault: Fault, problem: str) -> None:
    assert problems_of([fault], WORLD) == [problem]


@pytest.mark.parametrize(
    "name", ["Valueerror", "print", "KeyboardInterrupt", "UnicodeDecodeError", "ExceptionGroup", ""]
)
def test_what_cannot_be_raised_with_a_text_is_reported(name: str) -> None:
    (line,) = problems_of([Raise(rank=0, nth=1, error=name)], WORLD)

    assert line.startswith(f"faults[0].error: unknown exception {name!r}; expected one of Python's that takes a text")


def test_a_delay_on_a_link_from_a_rank_to_itself_is_reported() -> None:
    assert problems_of([LinkDelay(src=1, dst=1, delay_ns=1)], WORLD) != []


def test_a_fault_without_problems_has_none() -> None:
    assert problems_of([], WORLD) == []
    assert problems_of([Crash(rank=3, at_ns=0), Crash(rank=0, at_step=1, op="all_reduce", when="after")], WORLD) == []


def test_all_problems_of_all_faults_are_reported_at_once() -> None:
    found = problems_of([Crash(rank=9, signal="X"), SlowRank(rank=0, delay_ns=1), Hang(rank=-2, at_ns=-1)], WORLD)

    assert found == [
        "faults[0]: no trigger; give a time, a step, a point or an operation",
        "faults[0].rank: rank 9 is outside the world of 4 ranks",
        "faults[0].signal: unknown signal 'X'; expected a name such as 'SIGKILL'",
        "faults[2].at_ns: -1 ns lies before the start",
        "faults[2].rank: rank -2 is outside the world of 4 ranks",
    ]


def test_a_run_with_bad_faults_raises_with_all_of_them_and_starts_nothing() -> None:
    started = []

    with pytest.raises(FaultError) as caught:
        simdist.run(lambda: started.append(1), world_size=2, faults=[Crash(rank=2, at_ns=0), Crash(rank=0)])

    assert caught.value.problems == (
        "faults[0].rank: rank 2 is outside the world of 2 ranks",
        "faults[1]: no trigger; give a time, a step, a point or an operation",
    )
    assert str(caught.value) == (
        "faults: 2 problems\n"
        "  faults[0].rank: rank 2 is outside the world of 2 ranks\n"
        "  faults[1]: no trigger; give a time, a step, a point or an operation"
    )
    assert started == []


@given(st.data())
def test_faults_made_for_a_world_fit_it(data: st.DataObject) -> None:
    world_size = data.draw(world_sizes)

    assert problems_of(data.draw(st.lists(faults(world_size), max_size=3)), world_size) == []


@pytest.mark.parametrize("kind", [Crash, Hang, Signal, Raise, SlowRank, LinkDelay, Partition, StoreDelay, StoreLost])
def test_faults_are_frozen_and_take_keywords_only(kind: Any) -> None:
    assert kind.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(TypeError):
        kind(0)
