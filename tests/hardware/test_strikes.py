"""The real arm without processes: a simulation and `Strikes` strike at the same calls of a rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import simdist
from simdist.faults import Fault, OperationDelay, Raise, RankFault, SlowRank, StruckRank
from simdist.hardware._board import Board, BoardClient
from simdist.hardware._job import Job
from simdist.hardware._journal import Journal, read_life
from simdist.hardware.rank._strikes import Strikes
from tests.hardware.jobs import job

Happening = tuple[str, Any]


class Note(RankFault):
    """Records where the program is when it strikes."""

    seen: ClassVar[list[tuple[str, int]]] = []
    place: ClassVar[list[int]] = [0]

    def strike(self, rank: StruckRank) -> None:
        """Record the place."""
        self.seen.append((self.name, self.place[0]))


class FakeBoard:
    """Agrees to everything, and records all calls."""

    def __init__(self) -> None:
        self.reported: list[tuple[Any, ...]] = []

    def call(self, method: str, *arguments: Any) -> Any:
        self.reported.append((method, *arguments))
        return (True, False) if method == "wait_entered_or_ended" else None


def job_of(out: Path, faults: Sequence[Fault], *, seed: int = 0, scale: float = 1.0) -> Job:
    return job(out, seed=seed, max_restarts=0, time_scale=scale, limit_s=10.0, faults=tuple(faults))


def strikes_of(out: Path, faults: Sequence[Fault], client: Any = None, *, seed: int = 0, scale: float = 1.0) -> Strikes:
    made = job_of(out, faults, seed=seed, scale=scale)
    return Strikes(made, Journal(out, 0, 0), cast(BoardClient, client or FakeBoard()), 0, 0, -1)


def on_a_real_rank(out: Path, faults: Sequence[Fault], happened: Sequence[Happening], seed: int) -> list[int]:
    """Return the places of exceptions; other strikes are in `Note.seen`."""
    strikes = strikes_of(out, faults, seed=seed)
    raised = []
    for index, (kind, value) in enumerate(happened):
        Note.place[0] = index
        try:
            if kind == "step":
                strikes.on_step(value)
            elif kind == "point":
                strikes.on_point(value)
            else:
                strikes.before(value, "0")
                strikes.inside(value, "0", index, [0], -1, 4)
                strikes.after(value, "0", index)
        except RuntimeError:
            raised.append(index)
    return raised


CALLS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(1)),
    "barrier": lambda: dist.barrier(),
}


def simulated(faults: Sequence[Fault], happened: Sequence[Happening], seed: int) -> list[int]:
    """Return the same as `on_a_real_rank`, from a simulated program with the same calls."""

    def program() -> list[int]:
        dist.init_process_group("gloo")
        raised = []
        for index, (kind, value) in enumerate(happened):
            Note.place[0] = index
            try:
                if kind == "step":
                    simdist.step(value)
                elif kind == "point":
                    simdist.point(value)
                else:
                    CALLS[value]()
            except RuntimeError:
                raised.append(index)
        return raised

    raised: list[int] = simdist.run(program, world_size=1, faults=faults, seed=seed).values[0]
    return raised


counts = st.none() | st.integers(1, 3)
sources = st.one_of(
    st.fixed_dictionaries({"at_step": st.integers(0, 2), "every": counts}),
    st.fixed_dictionaries(
        {
            "at_point": st.just("saved"),
            "at_step": st.none() | st.integers(0, 2),
            "nth": counts,
            "every": counts,
            "probability": st.none() | st.just(0.5),
        }
    ),
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["all_reduce", "barrier"]),
            "at_step": st.none() | st.integers(0, 2),
            "nth": counts,
            "every": counts,
            "probability": st.none() | st.just(0.5),
            "when": st.sampled_from(["before", "after"]),
        }
    ),
)


@st.composite
def schedules(draw: st.DrawFn) -> list[Fault]:
    """Draw faults of one rank, each of which may depend on another."""
    faults: list[Fault] = []
    for index in range(draw(st.integers(1, 4))):
        after = draw(st.none() | st.sampled_from([fault.name for fault in faults])) if faults else None
        source = draw(sources)
        common: dict[str, Any] = {"rank": 0, "name": f"f{index}", "after": after, "optional": True}
        if draw(st.booleans()):
            faults.append(Note(**common, **source))
        else:
            faults.append(Raise(**common, **(source | {"when": "before"})))
    return faults


happenings = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 3)),
        st.tuples(st.just("point"), st.sampled_from(["saved", "loaded"])),
        st.tuples(st.just("operation"), st.sampled_from(["all_reduce", "barrier"])),
    ),
    min_size=4,
    max_size=16,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(schedules(), happenings, st.integers(0, 5))
def test_both_arms_strike_at_the_same_places(
    tmp_path: Path, faults: list[Fault], happened: list[Happening], seed: int
) -> None:
    Note.seen.clear()
    raised = simulated(faults, happened, seed)
    seen = list(Note.seen)

    Note.seen.clear()
    assert on_a_real_rank(tmp_path, faults, happened, seed) == raised
    assert Note.seen == seen


def test_a_strike_is_in_the_journal_and_on_the_board_if_others_wait_for_it(tmp_path: Path) -> None:
    board = FakeBoard()
    faults = [Note(rank=0, at_point="saved", name="first"), Note(rank=0, nth=1, after="first", name="second")]
    strikes = strikes_of(tmp_path, faults, board)

    strikes.before("barrier", "0")
    strikes.on_point("saved")
    strikes.before("barrier", "0")

    life = read_life(tmp_path, 0, 0)
    assert [record[3:] for record in life.strikes] == [(0, 0, ""), (1, 0, "")]
    assert [record[3:] for record in life.records] == [
        ("note", "note strikes rank 0", 0),
        ("note", "note strikes rank 0", 0),
    ]
    assert [reported[:2] for reported in board.reported if reported[0] == "struck"] == [("struck", "first")]


def test_a_delay_is_asked_how_long_it_has_lasted_in_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(OperationDelay):
        def lateness_ns(self, lasted_ns: int) -> int:
            return lasted_ns

    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    strikes = strikes_of(tmp_path, [Later(rank=0, start_ns=10)], scale=2.0)
    strikes._journal.origin_ns = 0
    monkeypatch.setattr(time, "time_ns", lambda: 2_000_020)

    strikes.before("barrier", "0")

    assert slept == [0.002]


def test_a_real_operation_is_as_late_as_the_simulated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowRank(rank=0, jitter_ns=5_000_000, tail_share=0.5, tail_ns=70_000_000, start_ns=500_000_000)

    def body() -> list[int]:
        dist.init_process_group("gloo")
        called_ns = []
        for second in range(6):
            time.sleep(max(0.0, second - time.monotonic()))
            dist.barrier()
            called_ns.append(time.monotonic_ns())
        return called_ns

    runs = [simdist.run(body, world_size=2, faults=faults, seed=5).values[0] for faults in ([], [slow])]
    simulated = [late_ns - clean_ns for clean_ns, late_ns in zip(*runs, strict=True)]

    slept: list[float] = []
    strikes = strikes_of(tmp_path, [slow], seed=5)
    strikes._journal.origin_ns = 0
    monkeypatch.setattr(time, "sleep", slept.append)
    for second in range(6):
        monkeypatch.setattr(time, "time_ns", lambda now_ns=second * 10**9: now_ns)
        strikes.before("barrier", "0")

    assert [round(each_s * 1e9) for each_s in slept] == simulated[1:]
    assert simulated[0] == 0
    assert len(set(simulated[1:])) == 5


@pytest.mark.real
def test_the_board_keeps_the_first_strike_and_lets_others_wait_for_it() -> None:
    with Board(1, ("127.0.0.1", 0), b"key") as board:
        assert board.wait_struck(["split"], 0.0) == {}
        board.struck("split", 7)
        board.struck("split", 9)

        assert board.wait_struck(["other", "split"], 10.0) == {"split": 7}


class TellingBoard(FakeBoard):
    """Reports two faults, one after the other, as struck, and then the end of the run."""

    def call(self, method: str, *arguments: Any) -> Any:
        self.reported.append((method, *arguments))
        names = arguments[0]
        if len(names) == 2:
            return {"there": 0}
        raise EOFError


def test_a_strike_on_another_rank_is_heard_of_on_the_board(tmp_path: Path) -> None:
    Note.seen.clear()
    faults = [
        Note(rank=1, nth=1, name="there"),
        Note(rank=0, nth=1, after="there", name="here"),
        Note(rank=1, nth=9, name="nowhere"),
        Note(rank=0, nth=1, after="nowhere", name="never"),
    ]
    strikes = strikes_of(tmp_path, faults)
    strikes.before("barrier", "0")
    assert Note.seen == []

    listener = TellingBoard()
    strikes._listen(cast(BoardClient, listener))
    strikes.before("barrier", "0")

    assert [name for name, _ in Note.seen] == ["here"]
