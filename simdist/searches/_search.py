"""The search over schedules: drawn one after the other, each run judged, failures merged by cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from simdist._quiet import no_logs_of_ranks
from simdist.errors import SimdistError
from simdist.kernel import guided_by
from simdist.result import RunResult
from simdist.scenario import Plan
from simdist.searches._attempts import Attempt, Facts, schedule
from simdist.searches._depth_first import DepthFirst
from simdist.searches._outcomes import EndlessError, Ran, cause_of, outcome_of
from simdist.searches._programs import Bounds, FunctionProgram, PlanProgram, Program, count_problems
from simdist.searches._report import ExploreReport, Outcome, Schedule, TurningPoint
from simdist.searches._turning_point import turning_point

__all__ = ["Progress", "Search", "explore", "explore_plan", "judged"]

Progress = Callable[[int, int, int], None]
"""Called with how many runs are done, how many there are, and how many causes were found."""

_LONGEST_NS = 240_000_000_000  # longer than a rank is starved, and what waits for it
_DIVERGED = (
    "the program did not do the same in the same order of turns: it depends on what an earlier run left behind, or on "
    "what is outside the simulation, and can't be searched systematically"
)


def explore(
    fn: Callable[..., Any],
    *,
    world_size: int,
    runs: int = 200,
    schedules: int = 0,
    systematic: bool = False,
    judges: Any = True,
    one_outcome: bool = False,
    until_found: bool = False,
    inevitable: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> ExploreReport:
    """Run `fn` under many schedules, and report those under which it fails.

    The first run is the usual one. The others draw who goes first at each instant, how long requests to stores and
    messages to any receiver take, and half of the time a rank that gets no processor for 1 ms to 2 min of virtual time.
    Every other schedule has priorities that change at a few random moments (probabilistic concurrency testing). The
    seed of the program's own generators stays the same.

    A `systematic` search draws nothing. It tries every order in which ranks and threads that can run at one instant may
    take turns, at requests to stores, messages and locks, until none is left or `runs` are over. Of orders that are
    known to be equal it tries one (dynamic partial-order reduction); `coverage` of the report says whether it had all.
    Requests to stores, and messages to any receiver, take no time in it.

    Args:
        fn: the program of a rank, as `simdist.run` takes it.
        world_size: number of ranks.
        runs: how many schedules are tried.
        schedules: the seed of the schedules; another one gives other schedules.
        systematic: try all orders that can differ, one after the other, and draw none.
        judges: as in `simdist.run`; all of them by default.
        one_outcome: what ranks return must not depend on the schedule: a second outcome is a failure.
        until_found: stop at the first failure.
        inevitable: look for the moment at which the first schedule of each cause became inevitable. It takes up to a
            hundred runs more.
        progress: called with how many runs are done, how many there are, and how many causes were found.
        settings: further ones of `simdist.run`.

    Returns:
        Every outcome with its count, and every cause of a failure with the schedule that shows it. `raise_for_failure`
        raises if there is one.

    Raises:
        ArgumentError: arguments are not what they have to be.

    Example:
        >>> import simdist, torch.distributed as dist
        >>> def first_come():
        ...     dist.init_process_group("gloo")
        ...     store = dist.TCPStore("127.0.0.1", 29600, 2, is_master=dist.get_rank() == 0)
        ...     place = store.add("here", 1)
        ...     dist.barrier()  # rank 0 has the store: it has to stay until all have asked
        ...     return place
        >>> report = simdist.explore(first_come, world_size=2, runs=20)
        >>> report.ok, len(report.outcomes)
        (True, 2)
    """
    problems = list(count_problems(runs=runs))
    if systematic and schedules:
        problems.append("schedules: a systematic search draws none")
    given = {"world_size": world_size, "judges": judges, **settings}
    program = FunctionProgram.of("simdist.explore", fn, given, problems=problems)
    search = Search(program, schedules, one_outcome=one_outcome, until_found=until_found, inevitable=inevitable)
    return search.run_systematically(runs, progress) if systematic else search.run(runs, progress)


def explore_plan(
    plan: Plan,
    *,
    runs: int = 200,
    schedules: int = 0,
    systematic: bool = False,
    one_outcome: bool = False,
    until_found: bool = False,
    inevitable: bool = True,
    progress: Progress | None = None,
) -> ExploreReport:
    """As `explore`, of a scenario, judged by its own expectations, with all judges unless it names some.

    Raises:
        ScenarioError: the workload can't be imported.
    """
    program = PlanProgram(judged(plan))
    search = Search(program, schedules, one_outcome=one_outcome, until_found=until_found, inevitable=inevitable)
    return search.run_systematically(runs, progress) if systematic else search.run(runs, progress)


def judged(plan: Plan) -> Plan:
    """The plan with all judges, unless it names some."""
    if plan.judges:
        return plan
    return replace(plan, judges=True, overrides=(*plan.overrides, "judges=true"))


@dataclass(slots=True)
class _Seen:
    """The first run of a kind, and how many came after it."""

    number: int
    attempt: Attempt
    count: int = 0


@dataclass(slots=True)
class Search:
    """A search over schedules on its way."""

    program: Program
    seed: int
    one_outcome: bool = field(kw_only=True)
    until_found: bool = field(kw_only=True)
    inevitable: bool = field(kw_only=True)
    _outcomes: dict[str, _Seen] = field(default_factory=dict, init=False)
    _failures: dict[str, tuple[_Seen, Schedule]] = field(default_factory=dict, init=False)
    _sometimes: dict[str, bool] = field(default_factory=dict, init=False)

    def run(self, runs: int, progress: Progress | None) -> ExploreReport:
        """Try so many schedules."""
        with ExitStack() as stack:
            stack.enter_context(no_logs_of_ranks())
            stack.enter_context(self.program.ready())
            first = self.program.run(Attempt())
            bounds = None if first.result is None else Bounds.of(first.result, _LONGEST_NS)
            self._note(0, Attempt(), first, bounds)
            done = 1
            # Of a program that can't be run nothing is known, and no schedule of its own can be drawn.
            facts = None if first.result is None else Facts.of(first.result)
            for number in range(1, runs if first.result is not None else 1):
                if self.until_found and self._has_found:
                    break
                assert facts is not None
                attempt = schedule(number, self.seed, facts)
                self._note(number, attempt, self.program.run(attempt, bounds), bounds)
                done += 1
                if progress is not None:
                    progress(done, runs, len(self._failures))
            return self._report(done)

    def run_systematically(self, most: int, progress: Progress | None) -> ExploreReport:
        """Try every order that can differ, in so many runs at most.

        Raises:
            SimdistError: the program does not do the same each time that it runs in the same order.
        """
        with ExitStack() as stack:
            stack.enter_context(no_logs_of_ranks())
            stack.enter_context(self.program.ready())
            orders, bounds, done, over = DepthFirst(), None, 0, False
            while done < most and not over:
                orders.begin()
                with guided_by(orders):
                    ran = self.program.run(Attempt(policy=orders.policy), bounds)
                if bounds is None and ran.result is not None:
                    bounds = Bounds.of(ran.result, _LONGEST_NS)
                self._note(done, Attempt(policy=orders.policy), ran, bounds)
                done += 1
                if progress is not None:
                    progress(done, most, len(self._failures))
                over = not orders.end(ran.result)
                if orders.diverged:
                    raise SimdistError(_DIVERGED)
                if self.until_found and self._has_found:
                    break
            return replace(self._report(done), coverage=orders.coverage(over=over))

    @property
    def _has_found(self) -> bool:
        return bool(self._failures) or (self.one_outcome and len(self._outcomes) > 1)

    def _note(self, number: int, attempt: Attempt, ran: Ran, bounds: Bounds | None) -> None:
        cause = cause_of(ran)
        result = ran.result
        if isinstance(ran.error, EndlessError):
            self._outcomes.setdefault("runs on and on", _Seen(number, attempt)).count += 1
        if result is not None:
            self._outcomes.setdefault(outcome_of(result), _Seen(number, attempt)).count += 1
            for name, held in result.sometimes:
                self._sometimes[name] = held or self._sometimes.get(name, False)
        if cause is None:
            return
        if cause.key not in self._failures:
            turn = self._turn(attempt, result, bounds)
            failure = Schedule(cause, 0, number, attempt, self.program.replay(attempt), turn)
            self._failures[cause.key] = _Seen(number, attempt), failure
        self._failures[cause.key][0].count += 1

    def _turn(self, attempt: Attempt, result: RunResult | None, bounds: Bounds | None) -> TurningPoint | None:
        if not self.inevitable or result is None:
            return None
        return turning_point(attempt, result, lambda other: self.program.run(other, bounds))

    def _report(self, runs: int) -> ExploreReport:
        outcomes = sorted(self._outcomes.items(), key=lambda item: (-item[1].count, item[1].number))
        sometimes: Mapping[str, bool] = self._sometimes
        return ExploreReport(
            runs=runs,
            outcomes=tuple(
                Outcome(text, seen.count, seen.number, self.program.replay(seen.attempt)) for text, seen in outcomes
            ),
            failures=tuple(replace(failure, count=seen.count) for seen, failure in self._failures.values()),
            one_outcome=self.one_outcome,
            sometimes=dict(sorted(sometimes.items())),
        )
