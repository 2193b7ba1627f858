"""The findings of a search over schedules."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simdist.errors import RunFailedError
from simdist.programs import Attempt, died_words
from simdist.scenario import Plan
from simdist.searches._depth_first import Coverage
from simdist.searches._outcomes import Cause
from simdist.searches._shrinking import ShrunkOrder
from simdist.searches._written import write_failures
from simdist.values import Json, Shown, format_duration

__all__ = ["ExploreReport", "Outcome", "Schedule", "SearchReport", "TurningPoint"]

_OUTCOMES = 8  # that are shown
_FOUND = "found: "
INTERRUPTED = "interrupted; found until then:"


@dataclass(frozen=True, slots=True)
class Outcome:
    """An end of runs: `text` describes each rank's end, `count` is the number of schedules; `first` the first one."""

    text: str
    count: int
    first: int
    replay: str


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """When a failure became inevitable.

    The failing schedule was kept up to decision `decision`, and the rest was drawn anew, `draws` times: some of these
    runs passed. One decision later all of them failed. `time_ns` and `rank` are those of the first event that differs
    between the failing run and the last one that passed; `failing` and `passing` describe this event.
    """

    decision: int
    time_ns: int
    rank: int
    failing: str
    passing: str
    draws: int
    runs: int

    def __str__(self) -> str:
        who = f", rank {self.rank}" if self.rank >= 0 else ""
        return (
            f"inevitable from {format_duration(self.time_ns)} on{who}: {self.failing}\n"
            f"  new draws before that still passed: {self.passing}"
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedules that fail for the same `cause`: how many, and the `first` of them (counted from 0), with its replay.

    `turning_point` is None if it was not searched for, or if no new draw passes at all. After a systematic search
    `attempt` is the plainest order that still fails, `shrunk` describes how it was found. `token` is the word for
    `simdist replay`, `plan` the scenario.
    """

    cause: Cause
    count: int
    first: int
    attempt: Attempt
    replay: str
    turning_point: TurningPoint | None = None
    shrunk: ShrunkOrder | None = None
    token: str = ""
    plan: Plan | None = field(default=None, compare=False)

    def lines(self, runs: int) -> Iterator[str]:
        """Yield the lines about the failure in a report of `runs` schedules."""
        yield f"found: {self.cause}"
        yield f"  {self.count} of {runs} schedules, first number {self.first}"
        if self.turning_point is not None:
            yield from (f"  {line}" for line in str(self.turning_point).splitlines())
        if self.shrunk is not None:
            order = self.shrunk
            left = "" if order.minimal else "; there may be a plainer one"
            if order.choices:
                needed = f"{self.attempt.policy}, {order.choices} of {order.of_choices} choices are needed{left}"
            else:
                needed = "the plain order: the first task always goes next"
            yield f"  schedule: {needed}"
        yield f"  replay: {f'simdist replay {self.token}' if self.token else self.replay}"


class SearchReport(Shown, ABC):
    """The common part of all reports of searches."""

    __slots__ = ()

    @property
    @abstractmethod
    def ok(self) -> bool:
        """True if nothing was found."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Return the report; a line that begins with "found:" begins a failure."""

    @abstractmethod
    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""

    def findings(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield for each failure its title, and further lines on it."""
        lines = list(self.lines())
        starts = [at for at, line in enumerate(lines) if line.startswith(_FOUND)]
        for at in starts:
            further = tuple(line.strip() for line in itertools.takewhile(_is_further, lines[at + 1 :]))
            yield lines[at].removeprefix(_FOUND), further or tuple(line.strip() for line in lines[:at])
        if not starts and not self.ok:
            yield lines[0], tuple(lines[1:])

    def __bool__(self) -> bool:
        """Equals `ok`."""
        return self.ok

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def raise_for_failure(self) -> None:
        """Do nothing if nothing was found.

        Raises:
            RunFailedError: its text is the report.
        """
        if not self.ok:
            raise RunFailedError(str(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreReport(SearchReport):
    """The results of all schedules.

    `runs` is the number of schedules tried; `outcomes` has each distinct outcome, the most frequent first; `failures`
    each cause, in the order of discovery. With `one_outcome`, a second outcome is a failure, too. `sometimes` has for
    each name of `simdist.sometimes` whether it held in any run. `coverage` exists after a systematic search. `cut`
    counts runs without an outcome: other ranks polled a starved one without end. `died` counts dead worker processes. A
    search that was `interrupted` has not tried everything.
    """

    runs: int
    outcomes: tuple[Outcome, ...]
    failures: tuple[Schedule, ...]
    one_outcome: bool = False
    sometimes: dict[str, bool] = field(default_factory=dict)
    coverage: Coverage | None = None
    cut: int = 0
    died: int = field(default=0, compare=False)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """True if all schedules were tried that should be, and none failed."""
        return not self.interrupted and not self.failures and (len(self.outcomes) < 2 or not self.one_outcome)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        if self.interrupted:
            yield INTERRUPTED
        runs, many = "" if self.runs == 1 else "s", "" if len(self.outcomes) == 1 else "s"
        yield f"{self.runs} schedule{runs}, {len(self.outcomes)} outcome{many}"
        if self.coverage is not None:
            yield str(self.coverage)
        for outcome in self.outcomes[:_OUTCOMES]:
            yield f"  {outcome.count:>6}  {outcome.text}"
            if len(self.outcomes) > 1 and not self.failures:
                yield f"          replay: {outcome.replay}"
        if len(self.outcomes) > _OUTCOMES:
            yield f"  and {len(self.outcomes) - _OUTCOMES} more"
        for failure in self.failures:
            yield from failure.lines(self.runs)
        if self.one_outcome and len(self.outcomes) > 1:
            yield "found: the outcome depends on the schedule"
        for name, held in self.sometimes.items():
            if not held:
                yield f"never reached: {name}"
        if self.cut:
            runs = "1 run was" if self.cut == 1 else f"{self.cut} runs were"
            yield f"{runs} cut short: ranks asked again and again for one that was starved"
        if self.died:
            yield died_words(self.died)

    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "runs": self.runs,
            "outcomes": [
                {"text": each.text, "count": each.count, "first": each.first, "replay": each.replay}
                for each in self.outcomes
            ],
            "failures": [
                {
                    **each.cause.summary(),
                    **each.attempt.summary(),
                    "count": each.count,
                    "first": each.first,
                    "replay": each.replay,
                    "token": each.token,
                    "shrunk": None if each.shrunk is None else _shrinking(each.shrunk),
                    "inevitable": None if each.turning_point is None else _turning(each.turning_point),
                }
                for each in self.failures
            ],
            "sometimes": self.sometimes,
            "cut": self.cut,
            "coverage": None if self.coverage is None else asdict(self.coverage),
        }

    def write(self, folder: Path) -> Iterator[Path]:
        """Write for each failure a scenario that replays it, and a pytest test; yield the paths. Only for scenarios.

        Raises:
            ArgumentError: the search was one of a function.
        """
        yield from write_failures("explore", folder, ((each.plan, each.attempt, each.cause) for each in self.failures))


def _is_further(line: str) -> bool:
    return line.startswith(" ")


def _shrinking(order: ShrunkOrder) -> dict[str, Any]:
    return {
        "choices": order.choices,
        "of_choices": order.of_choices,
        "runs": order.runs,
        "minimal": order.minimal,
    }


def _turning(point: TurningPoint) -> dict[str, Any]:
    return {
        "time_ns": point.time_ns,
        "rank": point.rank,
        "decision": point.decision,
        "failing": point.failing,
        "passing": point.passing,
    }
