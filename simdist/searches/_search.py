"""The search over schedules: they are drawn one after the other, each run is judged, failures are merged by cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from simdist.errors import SimdistError
from simdist.kernel import guided_by
from simdist.programs import (
    Attempt,
    Bounds,
    EndlessError,
    PlanProgram,
    Program,
    Ran,
    Workers,
    kept_when_interrupted,
    no_logs_of_ranks,
)
from simdist.searches._attempts import schedule
from simdist.searches._depth_first import DepthFirst
from simdist.searches._outcomes import Cause, cause_of, outcome_of
from simdist.searches._report import ExploreReport, Outcome, Schedule
from simdist.searches._shrinking import shrunk_order
from simdist.searches._tokens import token_of
from simdist.searches._trials import Judging, Trial, bounds_of, elsewhere
from simdist.searches._turning_point import turning_point

__all__ = ["Progress", "Search"]

Progress = Callable[[int, int, int], None]
"""Called with how many runs are done, how many there are, and how many causes were found."""

_DIVERGED = (
    "the program did not do the same in the same order of turns: it depends on what an earlier run left behind, or on "
    "what is outside the simulation, and can't be searched systematically"
)


@dataclass(slots=True)
class _Seen:
    """The first run of a kind, and the number of its runs."""

    number: int
    attempt: Attempt
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of a run: how ranks ended, what is wrong, and what should be reached in some run.

    A run that was cut short while a rank was starved, or could not be done, has no outcome.
    """

    outcome: str | None
    cause: Cause | None
    sometimes: tuple[tuple[str, bool], ...] = ()
    cut: bool = False

    @classmethod
    def at(cls, ran: Ran) -> _Look:
        """Return the result of this run."""
        if ran.result is not None:
            return cls(outcome_of(ran.result), cause_of(ran), ran.result.sometimes)
        endless = ran.error if isinstance(ran.error, EndlessError) else None
        settled = endless is not None and endless.settled
        return cls("does not end" if settled else None, cause_of(ran), cut=endless is not None and not settled)


class _Looking(Judging[Attempt, _Look]):
    """Runs schedules."""

    def do(self, task: Attempt) -> _Look:
        """Run a schedule, and return its result."""
        return _Look.at(self.trial.run(task))


@dataclass(slots=True)
class Search:
    """A running search over schedules."""

    program: Program
    seed: int
    one_outcome: bool = field(kw_only=True)
    until_found: bool = field(kw_only=True)
    inevitable: bool = field(kw_only=True)
    _outcomes: dict[str, _Seen] = field(default_factory=dict, init=False)
    _failures: dict[str, tuple[_Seen, Schedule]] = field(default_factory=dict, init=False)
    _sometimes: dict[str, bool] = field(default_factory=dict, init=False)
    _cut: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)

    def run(self, runs: int, workers: int | str, progress: Progress | None) -> ExploreReport:
        """Try `runs` schedules, in several processes.

        Raises:
            InterruptedRunsError: it was interrupted.
        """
        with kept_when_interrupted(self._so_far), ExitStack() as stack:
            stack.enter_context(no_logs_of_ranks())
            stack.enter_context(self.program.ready())
            trial = Trial(self.program)
            self._note(0, Attempt(), _Look.at(trial.first), trial.run)
            # If the program can't be run nothing is known about it, and no schedule can be drawn for it.
            if trial.first.result is None or (self.until_found and self._has_found):
                return self._report()
            facts = trial.facts
            drawn = (schedule(number, self.seed, facts) for number in range(1, runs))
            start = partial(elsewhere, _Looking, self.program.fresh())
            pool = stack.enter_context(Workers(_Looking(trial), start, workers, warm=self.program.fresh().warm))
            for attempt, look in pool.run(drawn, runs - 1):
                self._note(self._done, attempt, look, trial.run)
                if progress is not None:
                    progress(self._done, runs, len(self._failures))
                if self.until_found and self._has_found:
                    break
            return replace(self._report(), died=pool.died)

    def run_systematically(self, most: int, progress: Progress | None) -> ExploreReport:
        """Try every order that can differ, in `most` runs at most.

        Raises:
            SimdistError: the program does not do the same whenever it runs in the same order.
            InterruptedRunsError: it was interrupted.
        """
        with kept_when_interrupted(self._so_far), ExitStack() as stack:
            stack.enter_context(no_logs_of_ranks())
            stack.enter_context(self.program.ready())
            orders, bounds, over = DepthFirst(), None, False
            while self._done < most and not over:
                orders.begin()
                with guided_by(orders):
                    ran = self.program.run(Attempt(policy=orders.policy), bounds)
                if bounds is None and ran.result is not None:
                    bounds = bounds_of(ran.result)
                self._note(self._done, Attempt(policy=orders.policy), _Look.at(ran), None)
                if progress is not None:
                    progress(self._done, most, len(self._failures))
                over = not orders.end(ran.result)
                if orders.diverged:
                    raise SimdistError(_DIVERGED)
                if self.until_found and self._has_found:
                    break
            for key, (seen, failure) in self._failures.items():
                self._failures[key] = seen, self._shrunk(failure, bounds)
            return replace(self._report(), coverage=orders.coverage(over=over))

    def _shrunk(self, failure: Schedule, bounds: Bounds | None) -> Schedule:
        """Return the failure with the plainest order that still shows it."""

        def fails(attempt: Attempt) -> bool:
            cause = cause_of(self.program.run(attempt, bounds))
            return cause is not None and cause.key == failure.cause.key

        order = shrunk_order(failure.attempt, fails)
        attempt, program = order.attempt, self.program
        failure = replace(failure, attempt=attempt, replay=program.replay(attempt), shrunk=order)
        if isinstance(program, PlanProgram):
            failure = replace(failure, token=token_of(program.plan, attempt), plan=program.planned(attempt))
        return failure

    @property
    def _has_found(self) -> bool:
        return bool(self._failures) or (self.one_outcome and len(self._outcomes) > 1)

    def _note(self, number: int, attempt: Attempt, look: _Look, run: Callable[[Attempt], Ran] | None) -> None:
        self._done += 1
        if look.outcome is not None:
            self._outcomes.setdefault(look.outcome, _Seen(number, attempt)).count += 1
        self._cut += look.cut
        for name, held in look.sometimes:
            self._sometimes[name] = held or self._sometimes.get(name, False)
        cause = look.cause
        if cause is None:
            return
        if cause.key not in self._failures:
            plan = self.program.planned(attempt) if isinstance(self.program, PlanProgram) else None
            failure = Schedule(cause, 0, number, attempt, self.program.replay(attempt), plan=plan)
            seen = _Seen(number, attempt, count=1)
            self._failures[cause.key] = seen, failure  # before the turning point's search, which may be interrupted
            if self.inevitable and run is not None:
                self._failures[cause.key] = seen, replace(failure, turning_point=turning_point(attempt, run))
        else:
            self._failures[cause.key][0].count += 1

    def _so_far(self) -> ExploreReport | None:
        """Return the findings of an interrupted search; None if it has run nothing."""
        return replace(self._report(), interrupted=True) if self._done else None

    def _report(self) -> ExploreReport:
        outcomes = sorted(self._outcomes.items(), key=lambda item: (-item[1].count, item[1].number))
        sometimes: Mapping[str, bool] = self._sometimes
        return ExploreReport(
            runs=self._done,
            outcomes=tuple(
                Outcome(text, seen.count, seen.number, self.program.replay(seen.attempt)) for text, seen in outcomes
            ),
            failures=tuple(replace(failure, count=seen.count) for seen, failure in self._failures.values()),
            one_outcome=self.one_outcome,
            sometimes=dict(sorted(sometimes.items())),
            cut=self._cut,
        )
