"""Runs a program once undisturbed, and then once for each crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from simdist.programs import Attempt, PlanProgram, Problems, Program, Ran, Seen, Worker, said_by
from simdist.result import RunResult
from simdist.scenario import Expectations, Plan, difference, judge_training, lost_steps, lost_words, undisturbed
from simdist.sweeps._calls import Call
from simdist.sweeps._failure import Failure, Tried
from simdist.sweeps._points import Case, Watcher
from simdist.sweeps._second_lives import KnownEndError, SecondLife, SecondLives, left_in
from simdist.sweeps._tries import Tries
from simdist.world import observed_by

__all__ = ["CameBack", "Crashes", "Struck", "attempt_of", "crashes_elsewhere"]

_LOST = "max_steps_lost"


@dataclass(frozen=True, slots=True)
class Struck:
    """A run with a crash, and its problems: for each oracle that failed its name and the evidence.

    `left` has what its crashes have left on the disk; `begun` names what its last life found. Without a result the run
    was ended where that life began, because its end is known.
    """

    problems: Problems
    left: tuple[tuple[str, str], ...] = ()
    begun: str | None = None
    result: RunResult | None = None


@dataclass(frozen=True, slots=True)
class CameBack:
    """The oracle of a function: in the end every rank must return, with the value that it returned undisturbed.

    `expect` has expectations of states, samples, files and late writes.
    """

    steps_lost: int | None = None
    expect: Expectations | None = None
    check: Callable[[RunResult, str], str | None] | None = None

    def __call__(self, seen: Seen) -> Iterator[tuple[str, str]]:
        """Yield the problems of a run."""
        result, plain, all_ranks = seen.result, seen.plain, not seen.attempt.fewer_hosts
        failed = list(seen.outcomes())
        yield from failed
        for rank, other in zip(result.ranks, plain.ranks, strict=True) if plain and all_ranks and not failed else ():
            text = difference(rank.value, other.value)
            if text is not None:
                yield "same_as_without_faults", f"rank {rank.rank} differs at {text} undisturbed"
                break
        if self.steps_lost is not None and (lost := lost_steps(result.events)) > self.steps_lost:
            yield _LOST, lost_words(lost, self.steps_lost)
        if self.expect is not None and all_ranks:
            verdicts = judge_training(self.expect, result.events, (plain or result).events, seen.folder)
            yield from ((each.name, each.evidence) for each in verdicts if not each.ok)
        if said := said_by(self.check, "simdist.sweep", result, seen.folder):
            yield "check", said


class Crashes(Worker[Case, Tried]):
    """Strikes a program, and runs it to its end; if it `merges`, only until the end is known.

    `steps_lost` is how many steps may be lost, if there is a limit. `call` is the sweep's; `called` names the program's
    run.
    """

    def __init__(
        self,
        program: Program,
        *,
        steps_lost: int | None = None,
        merge: bool = True,
        call: Call | None = None,
        called: str = "",
    ) -> None:
        self.program = program
        self.called = called
        self.call = call
        self.merges = merge and program.forgets
        self.lives = SecondLives(merges=self.merges)
        self._steps_lost = steps_lost

    @classmethod
    def of_plan(cls, plan: Plan, *, merge: bool = True) -> Crashes:
        """Return the crashes of a scenario, without faults of its own."""
        expect, plan = plan.expect, undisturbed(plan)
        bounds = (expect.min_virtual_time_ns, expect.max_virtual_time_ns, expect.max_events)
        merge = merge and bounds == (None, None, None)
        return cls(PlanProgram(plan), steps_lost=expect.max_steps_lost, merge=merge, called=plan.replay)

    def ready(self) -> AbstractContextManager[None]:
        """Return a context in which the program can be run."""
        return self.program.ready()

    def watch(self, watcher: Watcher) -> Struck:
        """Run it undisturbed, watched. Later runs are compared with the result."""
        struck = self._run(Attempt(policy=""), watcher)
        self.lives.outcomes = watcher.found
        return struck

    def do(self, task: Case) -> Tried:
        """Try a crash."""
        struck = self.strike(task)
        failure = None if not struck.problems else Failure(task, struck.left, struck.problems, self.replay(task))
        return Tried(failure, struck.begun, () if struck.result is None else struck.result.sometimes)

    def strike(self, case: Case, watcher: Watcher | None = None) -> Struck:
        """Run it with a crash, and start it again. With a watcher the run goes to its end."""
        if watcher is not None:
            return self._run(attempt_of(case), watcher)
        life = None if case.left is None else self.lives.known(case.left)
        if life is not None and case.left is not None:
            known = self._known(self.lives.name(case.left), life, case.point.reached)
            if not known.problems:
                return known
        try:
            with self.lives.of_one_run(len(case.faults)) as remember:
                struck = self._run(attempt_of(case))
        except KnownEndError as end:
            return replace(self._known(end.name, end.life, end.reached, end.lost), left=end.left)
        assert struck.result is not None
        return replace(
            struck, begun=remember(struck.result, tuple(each for each in struck.problems if each[0] != _LOST))
        )

    def replay(self, case: Case) -> str:
        """Return the command or call that repeats a run with this crash."""
        return self.program.replay(attempt_of(case)) if self.call is None else self.call.text(case.faults)

    def learnt(self) -> dict[str, SecondLife]:
        """Return the second lives that have been seen to their ends, by what they found."""
        return dict(self.lives.seen)

    def learn(self, found: Mapping[str, object]) -> None:
        """Add second lives that another process has seen."""
        self.lives.learn({name: life for name, life in found.items() if isinstance(life, SecondLife)})

    def _run(self, attempt: Attempt, watcher: Watcher | None = None) -> Struck:
        if watcher is None:
            return _struck(self.program.run(attempt))
        with observed_by(watcher):
            return _struck(self.program.run(attempt))

    def _known(self, name: str, life: SecondLife, reached: int, lost: int = 0) -> Struck:
        problems = life.problems
        lost = lost if life.first_step is None else max(reached - life.first_step, lost)
        if self._steps_lost is not None and lost > self._steps_lost:
            problems = (*problems, (_LOST, lost_words(lost, self._steps_lost)))
        return Struck(problems, begun=name)


def _struck(ran: Ran) -> Struck:
    if ran.result is None:
        assert ran.error is not None
        raise ran.error
    return Struck(ran.problems, left_in(ran.result.events), result=ran.result)


def attempt_of(case: Case) -> Attempt:
    """Return the run in which a crash strikes: by the program's own policy, with as many restarts as needed."""
    return Attempt(policy="", faults=case.faults, restarts=len(case.faults), fewer_hosts=case.loses_hosts)


@contextmanager
def crashes_elsewhere(plan: Plan, tries: Tries) -> Iterator[Crashes]:
    """Yield the crashes of a worker process, which runs the scenario undisturbed first."""
    crashes = Crashes.of_plan(plan, merge=tries.merge)
    with crashes.ready():
        crashes.watch(Watcher(tries.outcomes))
        yield crashes
