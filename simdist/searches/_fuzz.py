"""The search over faults: plans are drawn one after the other, each run is judged, failures are made smaller."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from simdist.errors import ArgumentError
from simdist.faults import Surroundings
from simdist.programs import (
    Attempt,
    PlanProgram,
    Program,
    Workers,
    count_problems,
    kept_when_interrupted,
    no_logs_of_ranks,
    workers_problems,
)
from simdist.scenario import Plan, undisturbed
from simdist.searches._database import Database
from simdist.searches._explore import function_program, judged
from simdist.searches._fuzz_report import Bug, FuzzReport
from simdist.searches._guide import GENERATION, Guide, Reached, reached_by
from simdist.searches._lines import LinesAfterFaults
from simdist.searches._outcomes import Cause
from simdist.searches._shrinking import Shrunk, shrunk
from simdist.searches._swarm import families_of, family_problems, no_fault_fits, unfit_families
from simdist.searches._tokens import token_of
from simdist.searches._trials import Judging, Trial, elsewhere
from simdist.searches._verdicts import Verdict
from simdist.settings import check_settings
from simdist.values import items_of
from simdist.world import observed_by

if TYPE_CHECKING:
    from simdist.judges import Judge
    from simdist.settings import FuzzSettings

__all__ = ["Tries", "fuzz", "fuzz_plan"]

Progress = Callable[[int, int], None]
"""Called with how many runs are done, and how many causes were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """The settings of a search over faults.

    `runs` is the number of plans, or None: until the caller ends it. `seed` is that of the plans, `budget` how many
    ranks may be struck in one run, `families` the families of faults to draw from (None: all that can strike). Of each
    group of ranks in `spare` one is left alone in each run. Without `shrink` failures are reported as they were drawn.
    """

    runs: int | None = 200
    seed: int = 0
    budget: int = 1
    families: Sequence[str] | None = None
    shrink: bool = True
    spare: Sequence[Sequence[int]] = ()

    def problems(self, world_size: int | None = None) -> Iterator[str]:
        """Yield the problems of the settings, in a world of this size."""
        yield from family_problems(self.families)
        for group in self.spare:
            ranks = items_of(group) or ("",)
            whole = [rank for rank in ranks if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0]
            if len(whole) < len(ranks):
                yield f"spare: {group!r} is no group of ranks, such as (0, 2)"
            elif isinstance(world_size, int) and max(whole) >= world_size:
                yield f"spare: rank {max(whole)} is outside the world of {world_size} ranks"
        yield from count_problems(budget=self.budget, **({} if self.runs is None else {"runs": self.runs}))


def fuzz(
    fn: Callable[..., object],
    *,
    world_size: int,
    runs: int = 200,
    seed_of_plans: int = 0,
    budget: int = 1,
    families: Sequence[str] | None = None,
    spare: Sequence[Sequence[int]] = (),
    shrink: bool = True,
    judges: bool | Sequence[str | Judge] = True,
    workers: int | str = 1,
    progress: Progress | None = None,
    **settings: Unpack[FuzzSettings],
) -> FuzzReport:
    """Run `fn` under many plans of faults, and report the runs whose failures no fault explains.

    Each plan turns families of faults on or off, draws a few faults from them, and lets them end. A run passes if every
    rank returns what it returns without faults, or returns at all after a restart. A failure is explained if a rank is
    gone for good, or communication failed while a fault was active. Everything else is found: a hang after everything
    has healed, another exception, another result, a report of a judge.

    After the first 64 plans every other one is a change of an earlier plan that reached something new: a fault at
    another operation or on another side of it, an operation, an error or a line of the program that only runs after
    faults.

    Args:
        fn: the program of a rank, as `simdist.run` takes it.
        world_size: number of ranks.
        runs: how many plans.
        seed_of_plans: another one gives other plans; the seed of the program's own generators stays the same.
        budget: the largest number of ranks that are struck in one run.
        families: of faults: "crash", "host", "hang", "signal", "exception", "slow", "clock", "network", "store",
            "stale", "disk", "device", "corruption". None: all that can strike.
        spare: groups of ranks that no run strikes all of, such as the ranks that have copies of one shard: `[(0, 2),
            (1, 3)]`. A host that goes down strikes all ranks on it.
        shrink: make failures smaller: fewest faults, ranks and steps, the plainest schedule.
        judges: as in `simdist.run`; all of them by default.
        workers: in how many processes plans are tried, this one and others, if there are 40 or more. The findings do
            not depend on it. The others import `fn` by its name, and start with the script's main module: a script
            needs `if __name__ == "__main__":`. Or the address of a Dask scheduler, such as "tcp://10.0.0.1:8786", whose
            workers try what this process does not.
        progress: called with how many runs are done, and how many causes were found.
        settings: further ones of `simdist.run`, such as `max_restarts`. A program with a disk is a scenario's, whose
            disk is fresh for each run (`simdist fuzz FILE`).

    Returns:
        How many runs passed or were explained, and each cause found, with its smallest plan.

    Raises:
        ArgumentError: arguments are invalid.
        InterruptedRunsError: Ctrl-C ended it. Its `report` has the findings until then.
    """
    tries = Tries(runs=runs, seed=seed_of_plans, budget=budget, families=families, shrink=shrink, spare=spare)
    given = {"world_size": world_size, "judges": judges, **settings}
    problems = [*tries.problems(world_size), *workers_problems(workers)]
    program = function_program("simdist.fuzz", fn, given, problems, taken=("faults", "disk"))
    restarts = check_settings("simdist.fuzz", {"max_restarts": settings.get("max_restarts", 0)})["max_restarts"]
    return _Fuzz("simdist.fuzz", program, tries, restarts).run(workers, progress)


def fuzz_plan(
    plan: Plan,
    tries: Tries | None = None,
    *,
    database: Path | None = None,
    over: Callable[[], bool] | None = None,
    workers: int | str = 1,
    progress: Progress | None = None,
) -> FuzzReport:
    """As `fuzz`, for a scenario without its own faults, judged by its own expectations.

    Failures are kept in the folder `database`, and tried first the next time. The search ends when `over` returns True,
    or after the runs of `tries`. `workers` is the number of processes, this one and others, or the address of a Dask
    scheduler.

    Raises:
        ScenarioError: the workload can't be imported.
        ArgumentError: `tries` make no sense, or no fault of their families fits the world.
    """
    tries = tries or Tries()
    if problems := list(tries.problems(plan.world_size)):
        raise ArgumentError(plan.source, problems)
    plan = judged(plan)
    if plan.faults:
        plan = replace(plan, overrides=(*plan.overrides, "faults=[]"))
    plan = undisturbed(plan)
    kept = None if database is None else Database(database, plan)
    return _Fuzz(plan.source, PlanProgram(plan), tries, plan.max_restarts, kept=kept, over=over).run(workers, progress)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """An attempt to try: a plan with its number, or an entry of the database (-1)."""

    number: int
    attempt: Attempt
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """The verdict on a plan, and what its run reached."""

    verdict: Verdict
    reached: frozenset[Reached]


class _Judge(Judging[_Drawn, _Tried]):
    """Runs plans of faults."""

    def do(self, task: _Drawn) -> _Tried:
        """Run a plan, and judge it."""
        with observed_by(LinesAfterFaults()) as lines:
            ran = self.trial.run(task.attempt)
        reached = frozenset[Reached]() if ran.result is None else reached_by(ran.result, lines.passed)
        return _Tried(self.trial.judge(ran, task.attempt), reached)

    def killed(self, number: int, task: _Drawn, how: str) -> _Tried:
        """Report it by the number of its plan: a pool counts within a generation."""
        return super().killed(number if task.number < 0 else task.number, task, how)


@dataclass(slots=True)
class _Found:
    """A cause: the number of the first plan that showed it, the smallest attempt that shows it, and a count."""

    cause: Cause
    number: int
    small: Shrunk
    count: int = 0


@dataclass(slots=True)
class _Fuzz:
    """A running search over faults; `called` is its name in messages."""

    called: str
    program: Program
    tries: Tries
    max_restarts: int
    kept: Database | None = field(default=None, kw_only=True)
    over: Callable[[], bool] | None = field(default=None, kw_only=True)
    _found: dict[str, _Found] = field(default_factory=dict, init=False)
    _over: bool = field(default=False, init=False)  # no more plans will be tried
    _counts: dict[str, int] = field(default_factory=lambda: {"passed": 0, "explained": 0, "found": 0}, init=False)

    def run(self, workers: int | str, progress: Progress | None) -> FuzzReport:
        """Try the plans, those in the database first.

        Raises:
            InterruptedRunsError: it was interrupted.
        """
        with kept_when_interrupted(self._so_far), ExitStack() as stack:
            stack.enter_context(no_logs_of_ranks())
            stack.enter_context(self.program.ready())
            trial = Trial(self.program)
            if trial.wrong is not None:
                return self._without_faults(trial, trial.wrong)
            start = partial(elsewhere, _Judge, self.program.fresh())
            pool = stack.enter_context(Workers(_Judge(trial), start, workers, warm=self.program.fresh().warm))
            guide = self._guide(trial)
            for generation in self._generations(guide):
                for drawn, tried in pool.run(generation, self.tries.runs):
                    self._note(trial, drawn, tried.verdict)
                    if drawn.number >= 0:
                        guide.learn(drawn.number, tried.reached)
                    if progress is not None:
                        progress(self._done, len(self._found))
            return replace(self._report(), reached=len(guide.reached), died=pool.died)

    def _without_faults(self, trial: Trial, cause: Cause) -> FuzzReport:
        """Report a program that fails without faults: its smallest run that fails."""
        small = Shrunk(self.program, Attempt(), 0, False)
        if self.tries.shrink:
            small = self._smallest(trial, Attempt(), cause)
        bug = _bug(_Found(cause, 0, small, count=1))
        return FuzzReport(runs=1, passed=0, explained=0, bugs=(bug,), wrong=cause)

    def _guide(self, trial: Trial) -> Guide:
        program, tries = self.program, self.tries
        about: dict[str, Any] = {
            "has_disk": program.has_disk,
            "has_local_disks": program.has_local_disks,
            "has_devices": program.has_devices,
            "moves_payloads": program.moves_payloads,
        }
        world = Surroundings(trial.facts.world_size, self.max_restarts, **about)
        families = list(tries.families or families_of(world))
        if set(unfit_families(world)).issuperset(families):
            raise ArgumentError(self.called, [no_fault_fits(families)])
        return Guide(tries.seed, trial.facts, world, tries.budget, families, tries.spare)

    def _generations(self, guide: Guide) -> Iterator[Iterator[_Drawn]]:
        """Yield the entries of the database; then plans, one generation at a time."""
        if self.kept is not None:
            yield (_Drawn(-1, attempt, path) for path, attempt in list(self.kept.entries()))
        for first in itertools.count(0, GENERATION):
            yield self._plans(guide, first)
            guide.end_generation()
            if self._over:
                return

    def _plans(self, guide: Guide, first: int) -> Iterator[_Drawn]:
        for number in range(first, first + GENERATION):
            self._over = number == self.tries.runs or (self.over is not None and self.over())
            if self._over:
                return
            yield _Drawn(number, guide.plan(number))

    def _note(self, trial: Trial, drawn: _Drawn, verdict: Verdict) -> None:
        self._counts[verdict.kind] += 1
        cause = verdict.cause
        if verdict.kind != "found" or cause is None:
            if drawn.path is not None and self.kept is not None:
                self.kept.forget(drawn.path)
            return
        found = self._found.get(cause.key)
        if found is None:
            small = Shrunk(self.program, drawn.attempt, 0, False)
            found = self._found[cause.key] = _Found(cause, drawn.number, small, count=1)
            try:
                if self.tries.shrink:
                    found.small = small = self._smallest(trial, drawn.attempt, cause)
            finally:  # after an interruption it stays as it was drawn
                if self.kept is not None and isinstance(small.program, PlanProgram):
                    self.kept.keep(cause, small.attempt, small.program.plan)
        else:
            found.count += 1

    def _smallest(self, trial: Trial, attempt: Attempt, cause: Cause) -> Shrunk:
        trials: list[Trial] = [trial]

        def fails(program: Program, tried: Attempt) -> bool:
            known = next((each for each in trials if each.program == program), None)
            with ExitStack() as stack:
                if known is None:
                    stack.enter_context(program.ready())
                    known = Trial(program)
                    trials.append(known)
                if known.wrong is not None:
                    return tried.is_plain and known.wrong.key == cause.key
                verdict = known.verdict(tried)
            return verdict.kind == "found" and verdict.cause is not None and verdict.cause.key == cause.key

        return shrunk(trial.program, attempt, fails)

    @property
    def _done(self) -> int:
        return sum(self._counts.values())

    def _so_far(self) -> FuzzReport | None:
        """Return the findings of an interrupted search; None if it has tried nothing."""
        return replace(self._report(), interrupted=True) if self._done else None

    def _report(self) -> FuzzReport:
        return FuzzReport(
            runs=self._done,
            passed=self._counts["passed"],
            explained=self._counts["explained"],
            bugs=tuple(map(_bug, self._found.values())),
        )


def _bug(found: _Found) -> Bug:
    small = found.small
    plan = small.program.planned(small.attempt) if isinstance(small.program, PlanProgram) else None
    token = token_of(small.program.plan, small.attempt) if isinstance(small.program, PlanProgram) else ""
    return Bug(
        cause=found.cause,
        count=found.count,
        first=found.number,
        attempt=small.attempt,
        minimal=small.minimal,
        replay=small.program.replay(small.attempt),
        token=token,
        plan=plan,
    )
