"""The findings of a search over faults, and the files that replay them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simdist.programs import Attempt, died_words
from simdist.scenario import Plan
from simdist.searches._outcomes import Cause
from simdist.searches._report import INTERRUPTED, SearchReport
from simdist.searches._written import write_failures
from simdist.values import Json

__all__ = ["Bug", "FuzzReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """Runs that fail for the same `cause`: how many, and the number of the `first` plan (-1: from the database).

    `attempt` is the smallest that still fails in this way; `minimal` is False if there was no time to make sure.
    `replay` is the command or call that repeats it, `token` the word for `simdist replay`, `plan` the scenario.
    """

    cause: Cause
    count: int
    first: int
    attempt: Attempt
    minimal: bool
    replay: str
    token: str = ""
    plan: Plan | None = field(default=None, compare=False)

    def lines(self) -> Iterator[str]:
        """Yield the lines about the bug in a report."""
        yield f"found: {self.cause}"
        origin = "from the database" if self.first < 0 else f"first plan {self.first}"
        yield f"  {self.count} run{'s' if self.count > 1 else ''}, {origin}"
        for fault in self.attempt.faults:
            yield f"  fault: {fault!r}"
        if self.attempt.policy != "fifo":
            yield f"  schedule: {self.attempt.policy}"
        yield self.last_line()

    def last_line(self) -> str:
        """Return the line with the command or call for a replay."""
        return f"  replay: {f'simdist replay {self.token}' if self.token else self.replay}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzReport(SearchReport):
    """The numbers of runs that passed and that failed as their faults explain, and the bugs found.

    `reached` counts what the runs reached: an operation and a fault with the phase in which it struck, operations and
    errors of ranks afterwards, and the lines at which they failed. Plans that reach something new lead to others.
    `wrong` is the cause if the program fails without any fault; nothing else was tried then, and the one bug is the
    smallest run that fails so. `died` counts worker processes that died. A search that was `interrupted` has not tried
    all plans, or not made its last bug small.
    """

    runs: int
    passed: int
    explained: int
    bugs: tuple[Bug, ...]
    reached: int = 0
    wrong: Cause | None = None
    died: int = field(default=0, compare=False)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """True if all plans were tried, and nothing was found."""
        return not self.interrupted and not self.bugs and self.wrong is None

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        if self.interrupted:
            yield INTERRUPTED
        if self.wrong is not None:
            yield f"without any fault: {self.wrong}"
            yield from (bug.last_line() for bug in self.bugs)
            return
        failed = self.runs - self.passed - self.explained
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        yield f"{runs}: {self.passed} passed, {self.explained} failed as their faults explain, {failed} found"
        if self.died:
            yield died_words(self.died)
        for bug in self.bugs:
            yield from bug.lines()

    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "runs": self.runs,
            "passed": self.passed,
            "explained": self.explained,
            "reached": self.reached,
            "wrong": None if self.wrong is None else str(self.wrong),
            "bugs": [
                {
                    **bug.cause.summary(),
                    **bug.attempt.summary(),
                    "count": bug.count,
                    "first": bug.first,
                    "minimal": bug.minimal,
                    "replay": bug.replay,
                    "token": bug.token,
                }
                for bug in self.bugs
            ],
        }

    def write(self, folder: Path) -> Iterator[Path]:
        """Write for each bug a scenario that replays it, and a pytest test; yield the paths. Only for scenarios.

        Raises:
            ArgumentError: the search was one of a function.
        """
        yield from write_failures("fuzz", folder, ((bug.plan, bug.attempt, bug.cause) for bug in self.bugs))
