"""Faults that users write: from each base class, in Python and in scenario files, with the same error reports."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d import OperationCalled
from simdist.errors import FaultError, ScenarioError
from simdist.faults import (
    KINDS,
    RANK,
    Fault,
    LinkEffect,
    LinkFault,
    Machine,
    OperationDelay,
    Problem,
    RankFault,
    Stage,
    StoreFault,
    StruckRank,
    Surroundings,
    problems_of,
)
from simdist.kernel import PASS, Verdict
from simdist.scenario import load, run_scenario
from tests.faults.programs import COMPUTE_NS, MS, events_of, run, statuses, steps

GLOO = Machine("gloo", 1, 0)


class Preempted(RankFault):
    """The rank's machine is taken away."""

    notice: str = "go"
    seen: ClassVar[list[tuple[int, int, bool]]] = []

    def strike(self, rank: StruckRank) -> None:
        """Send SIGTERM, and record the rank."""
        self.seen.append((rank.rank, rank.life, rank.is_real))
        rank.kill("SIGTERM")

    def begins(self) -> str:
        """Describe the notice."""
        return f"rank {self.rank} hears {self.notice!r}"


class Overheating(OperationDelay):
    """Operations become slower and slower."""

    share: float = 0.5

    def lateness_ns(self, lasted_ns: int) -> int:
        """Return a share of the time that the fault has lasted."""
        return round(lasted_ns * self.share)


class FarAway(LinkFault):
    """Every link of a rank is slow."""

    rank: Annotated[int, RANK]

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Delay both directions."""
        return LinkEffect(delay_ns=30 * MS) if self.rank in (src, dst) else None


class Forgetful(StoreFault):
    """The store is slow for odd ranks."""

    def arm(self, stage: Stage) -> None:
        """Begin at once."""
        stage.report()
        stage.delay_requests(self.request_delay_ns)

    def request_delay_ns(self, rank: int, now_ns: int) -> int:
        """Delay only odd ranks."""
        return (rank % 2) * 7 * MS


class Barred(Fault):
    """No operation happens from a moment on: a fault that uses the bus directly."""

    from_ns: int = 0
    ranks: tuple[int, ...] | None = None

    def arm(self, stage: Stage) -> None:
        """Judge each operation."""

        def judge(event: Any) -> Verdict:
            return Verdict(error=PermissionError("barred")) if stage.now_ns >= self.from_ns else PASS

        stage.judge(OperationCalled, judge)
        stage.call_at(self.from_ns, stage.report)

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Require that it begins on the first day."""
        yield from super().problems(world)
        if world.fine("from_ns") and self.from_ns > 86_400 * 10**9:
            yield "from_ns", "lies beyond the first day"


def test_a_fault_of_a_rank_strikes_as_it_says() -> None:
    Preempted.seen.clear()
    result = run(Preempted(rank=1, at_step=1))

    assert result.ranks[1].exit_code == -15
    assert Preempted.seen == [(1, 0, False)]
    (event,) = events_of(result, "fault")
    assert event.data == {"fault": "preempted", "text": "rank 1 hears 'go'", "life": 0}
    assert result.faults[0].ended == ((1, 0, "killed"),)


def test_a_delay_of_operations_is_asked_each_time() -> None:
    result = run(Overheating(rank=0, start_ns=COMPUTE_NS // 2))

    delays = [event.data["duration_ns"] for event in events_of(result, "delay", ranks=[0])]
    calls = [event.time_ns for event in events_of(result, "delay", ranks=[0])]
    assert delays == [(called - COMPUTE_NS // 2 + 1) // 2 for called in calls]
    assert len(delays) == 3


def test_a_fault_of_links_lies_on_all_that_it_says() -> None:
    def program() -> int:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), 1)
            dist.send(torch.ones(1), 2)
        else:
            dist.recv(torch.ones(1), 0)
        return time.monotonic_ns()

    plain = simdist.run(program, world_size=3).values
    result = simdist.run(program, world_size=3, faults=[FarAway(rank=2)])

    assert result.values[1] == plain[1]
    # The delay counts twice: for the receiver's notice, and for the data.
    assert (plain[2], result.values[2]) == (300_002, 2 * 30 * MS + 300_001)


def test_a_fault_of_the_store_delays_requests() -> None:
    def program() -> None:
        dist.init_process_group("gloo")

    result = simdist.run(program, world_size=3, faults=[Forgetful()])

    assert {event.rank for event in events_of(result, "delay")} == {1}
    assert result.ok


def test_a_fault_from_first_principles_judges_what_is_announced() -> None:
    result = run(Barred(from_ns=2 * MS))

    assert [str(rank.exception) for rank in result.ranks] == ["barred"] * 3
    assert [rank.operations for rank in result.ranks] == [1] * 3
    assert result.faults[0].struck_ns == (2 * MS,)


def test_what_a_real_machine_does_with_it_follows_from_its_base() -> None:
    assert Preempted(rank=0, nth=1).real_obstacle(GLOO) == ""
    assert Overheating(rank=0).real_obstacle(GLOO) == ""
    assert FarAway(rank=0).real_obstacle(GLOO) == ""
    assert Forgetful().real_obstacle(Machine("gloo", 1, 2)).startswith("with restarts rank 0 serves the store itself")
    assert Barred().real_obstacle(GLOO) == "it is made for simulations only"


def test_every_kind_has_a_file_of_its_own_and_says_all_of_itself() -> None:
    assert len({kind.__module__ for kind in KINDS.values()}) == len(KINDS) == 28
    for name, kind in KINDS.items():
        assert kind.kind == name
        assert kind.__doc__
        assert kind.begins is not Fault.begins
        assert kind.real_obstacle is not Fault.real_obstacle


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Preempted(rank=5, nth=1), ".rank: rank 5 is outside the world of 3 ranks"),
        (Preempted(rank=1), ": no trigger; give a time, a step, a point or an operation"),
        (Preempted(rank=1, nth=1, notice=3), ".notice: expected a text, found the number 3"),  # type: ignore[arg-type]
        (Overheating(rank=1, share="much"), ".share: expected a number, found the text 'much'"),  # type: ignore[arg-type]
        (FarAway(rank=7), ".rank: rank 7 is outside the world of 3 ranks"),
        (Barred(from_ns=-1), ".from_ns: -1 ns lies before the start"),
        (Barred(from_ns=10**15), ".from_ns: lies beyond the first day"),
    ],
)
def test_its_problems_are_reported_like_those_of_any_fault(fault: Fault, problem: str) -> None:
    assert problems_of([fault], 3) == [f"faults[0]{problem}"]
    with pytest.raises(FaultError):
        simdist.run(steps, world_size=3, faults=[fault])


def test_problems_that_raise_are_reported_too() -> None:
    class Broken(Fault):
        def problems(self, world: Surroundings) -> Iterator[Problem]:
            raise ZeroDivisionError("oh")

    assert problems_of([Broken()], 3) == ["faults[0]: its problems() raised ZeroDivisionError: oh"]


def test_problems_that_are_no_pairs_are_a_problem() -> None:
    class Odd(Fault):
        def problems(self, world: Surroundings) -> Any:
            return ["code: has to be positive"]

    (problem,) = problems_of([Odd()], 3)
    assert problem.startswith(
        "faults[0]: its problems() has to yield pairs of a field's name and a text, not the text "
    )


def test_a_class_in_place_of_a_fault_is_reported() -> None:
    assert problems_of([Barred], 3) == [
        "faults[0]: expected a fault from simdist.faults, found the class Barred; call it with its arguments"
    ]


def test_it_is_shown_as_its_call_and_survives_pickling() -> None:
    fault = Preempted(rank=1, notice="now", name="loss", op="barrier", optional=True)

    assert repr(fault) == "Preempted(rank=1, op='barrier', notice='now', name='loss', optional=True)"
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert fault.called == "'loss' (preempted of rank 1)"


def test_other_texts_do_not_change_what_it_is_called_and_what_it_draws() -> None:
    fault = Preempted(rank=1, nth=1, notice="{tmp}/x")
    changed = fault.with_texts(lambda text: text.replace("{tmp}", "/somewhere"))

    assert isinstance(changed, Preempted)
    assert changed.notice == "/somewhere/x"
    assert repr(changed) == repr(fault)
    assert repr(pickle.loads(pickle.dumps(changed))) == repr(fault)
    assert fault.with_texts(str) is fault


# -- in files ---------------------------------------------------------------------------------------------------------

MODULE = '''
from simdist.faults import RankFault

class Loss(RankFault):
    """A rank is lost."""

    code: int = 3
    wait_ns: int = 0

    def strike(self, rank):
        rank.exit(self.code)

    def problems(self, world):
        yield from super().problems(world)
        if world.fine("code") and self.code == 0:
            yield "code", "0 is no loss"

class NoFault:
    pass

number = 3

def work():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
'''

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "raising.py").write_text("\nx = 1 / 0\n")

    def write(*faults: str) -> str:
        path = tmp_path / "file.toml"
        tables = "".join(f"[[faults]]\n{fault}\n" for fault in faults)
        path.write_text(f'world_size = 2\n[workload]\ntarget = "mine:work"\n{tables}')
        return str(path)

    return write


def test_a_file_names_a_class_of_its_folder(write: Write) -> None:
    source = write('kind = "mine:Loss"\nrank = 1\nop = "all_reduce"\ncode = 9\nwait = "3ms"')
    plan = load(source)
    report = run_scenario(plan)

    assert repr(plan.faults[0]) == "Loss(rank=1, op='all_reduce', code=9, wait_ns=3000000)"
    assert report.result.ranks[1].exit_code == 9
    assert {verdict.name: verdict.ok for verdict in report.verdicts}["faults_strike"]
    assert pickle.loads(pickle.dumps(plan)).faults[0].code == 9  # the module is found from the file's folder


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ('kind = "mine:Los"', ".kind: module 'mine' has no class 'Los'; did you mean 'Loss'?"),
        ('kind = "mien:Loss"', ".kind: no module 'mien' in {folder} or on Python's path; did you mean 'mine'?"),
        ('kind = "mine:"', ".kind: 'mine:' is no 'module:class'"),
        (
            'kind = "raising:X"',
            ".kind: importing 'raising' raised ZeroDivisionError: division by zero (raising.py, line 2)",
        ),
        (
            'kind = "mine:NoFault"',
            ".kind: 'mine:NoFault' is no fault but a class; a fault's class is made from simdist.faults.Fault",
        ),
        (
            'kind = "mine:number"',
            ".kind: 'mine:number' is no fault but a int; a fault's class is made from simdist.faults.Fault",
        ),
        ("kind = 3", '.kind: expected the name of a fault or "module:Class", found the number 3'),
        ('kind = "mine:Loss"\nrank = 1\nstep = 1\ncode = "x"', ".code: expected a whole number, found the text 'x'"),
        ('kind = "mine:Loss"\nrank = 1\nstep = 1\ncode = 0', ".code: 0 is no loss"),
        ('kind = "mine:Loss"\nrank = 1\nstep = 1\nwait = "soon"', ".wait: "),
        ('kind = "mine:Loss"\nrank = 1\nstep = 1\ncoed = 1', ".coed: unknown key; did you mean 'code'?"),
        ('kind = "mine:Loss"\nrank = 2\nstep = 1', ".rank: rank 2 is outside the world of 2 ranks"),
        ('kind = "mine:Loss"\nrank = 2\nstep = "x"', ".step: expected a whole number, found the text 'x'"),
        ('kind = "mine:Loss"\nstep = 1', ".rank: missing; it has no default"),
        ('kind = "mine:Loss"\nrank = 1\nop = "all_redcue"', ".op: unknown operation 'all_redcue'; did you mean"),
    ],
)
def test_what_is_wrong_with_it_in_a_file_is_reported(write: Write, tmp_path: Path, fault: str, problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(write(fault))

    assert caught.value.problems[0].startswith("faults[0]" + problem.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("faults", "problem"),
    [
        (
            ['kind = "crash"\nrank = 0\nstep = 1\nafter = "x"'],
            "faults[0].after: no fault is called 'x'; none has a name",
        ),
        (
            ['kind = "crash"\nrank = 0\nstep = 1\nname = "first"', 'kind = "crash"\nrank = 1\nafter = "frist"'],
            "faults[1].after: no fault is called 'frist'; did you mean 'first'?",
        ),
        (
            ['kind = "crash"\nrank = 0\nname = "a"\nafter = "a"'],
            "faults[0].after: it waits for itself, so it never comes",
        ),
        (
            ['kind = "hang"\nrank = 0\nname = "a"\nafter = "b"', 'kind = "hang"\nrank = 1\nname = "b"\nafter = "a"'],
            "faults[0].after: it waits for itself, by way of 'b', so it never comes",
        ),
        (
            ['kind = "hang"\nrank = 0\nname = "a"\nat = "1s"', 'kind = "hang"\nrank = 1\nname = "a"\nat = "1s"'],
            "faults[0].name: 'a' is the name of another fault, too",
        ),
        (['kind = "hang"\nrank = 0\nat = "1s"\nevery = 2'], "faults[0].every: counts operations, points or steps"),
        (['kind = "hang"\nrank = 0\nstep = 1\nperiod = "1s"'], "faults[0].period: needs a time to begin at"),
        (['kind = "hang"\nrank = 0\nat = "1s"\nperiod = "0s"'], "faults[0].period: 0 ns is no period"),
        (['kind = "crash"\nrank = 0\nop = "barrier"\nevery = 1'], "faults[0].every: a crash strikes once in a life"),
        (['kind = "crash"\nrank = 0\nop = "barrier"\nprobability = 2'], "faults[0].probability: 2 is no probability"),
        (
            ['kind = "crash"\nrank = 0\npoint = "x"\nop = "barrier"'],
            "faults[0]: a point and an operation are two triggers",
        ),
        (['kind = "crash"\nrank = 0\nstep = -1'], "faults[0].step: -1 never comes; steps count from 0"),
        (
            ['kind = "raise"\nrank = 0\nafter = "b"', 'kind = "hang"\nrank = 1\nname = "b"\nat = "1s"'],
            "faults[0].after: no program raises at a time; give an operation, a step or a point as well",
        ),
    ],
)
def test_triggers_that_can_never_come_are_reported(write: Write, faults: list[str], problem: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(write(*faults))

    assert caught.value.problems[0].startswith(problem)


def test_one_may_come_after_a_fault_that_is_wrong_itself(write: Write) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(write('kind = "crash"\nrank = "x"\nstep = 1\nname = "a"', 'kind = "crash"\nrank = 1\nafter = "a"'))

    assert caught.value.problems == ("faults[0].rank: expected a whole number, found the text 'x'",)


def test_statuses_of_a_world_with_it_are_those_of_any_fault() -> None:
    assert statuses(run(Preempted(rank=0, at_ns=1))) == ["killed", "raised", "raised"]
