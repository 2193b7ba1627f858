"""A program that is run with faults, and compared with its run without faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from simdist.programs import Attempt, Bounds, Program, Ran, Worker
from simdist.result import RunResult
from simdist.searches._attempts import Facts
from simdist.searches._outcomes import Cause, cause_of
from simdist.searches._verdicts import Verdict, verdict_of

__all__ = ["Judging", "Trial", "bounds_of", "elsewhere"]

_LONGEST_NS = 240_000_000_000  # longer than all faults of an attempt together, and than the waits for them

Task = TypeVar("Task")
Result = TypeVar("Result")
_Judging = TypeVar("_Judging", bound="Judging[Any, Any]")


@dataclass(slots=True)
class Trial:
    """A program with its first run, which has no faults. Make it inside `program.ready()`."""

    program: Program
    first: Ran = field(init=False)
    wrong: Cause | None = field(init=False)  # the cause if the program fails without any fault
    _bounds: Bounds | None = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.program.run(Attempt())
        self.wrong = cause_of(self.first)
        self._bounds = None if self.first.result is None else bounds_of(self.first.result)

    @property
    def plain(self) -> RunResult:
        """The run without faults; there must be one."""
        assert self.first.result is not None
        return self.first.result

    @property
    def facts(self) -> Facts:
        """The facts of the run without faults."""
        return Facts.of(self.plain)

    def verdict(self, attempt: Attempt) -> Verdict:
        """Run the attempt, and return the verdict."""
        return self.judge(self.run(attempt), attempt)

    def judge(self, ran: Ran, attempt: Attempt) -> Verdict:
        """Return the verdict on this run of the attempt."""
        return verdict_of(ran, attempt, self.plain)

    def run(self, attempt: Attempt) -> Ran:
        """Run the attempt, within the bounds of the program's plain run."""
        return self.program.run(attempt, self._bounds)


def bounds_of(plain: RunResult) -> Bounds:
    """Return bounds for runs of a program that runs like `plain` without faults."""
    return Bounds.of(plain, _LONGEST_NS)


class Judging(Worker[Task, Result]):
    """Runs the attempts of a search, here or in a worker process, with a trial of its own."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial


@contextmanager
def elsewhere(kind: type[_Judging], program: Program) -> Iterator[_Judging]:
    """Yield the worker of another process."""
    with program.ready():
        yield kind(Trial(program))
