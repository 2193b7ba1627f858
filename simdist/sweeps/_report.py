"""The findings of a sweep: each failure in a sentence, and a table by line of the user's code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simdist.files import reaches_c_code
from simdist.programs import died_words
from simdist.result import RunResult
from simdist.sweeps._calls import Call
from simdist.sweeps._cures import cures, renamed
from simdist.sweeps._failure import Failure
from simdist.sweeps._points import Case, Point
from simdist.trace import events_of
from simdist.values import Shown

__all__ = ["Line", "SweepReport", "alike", "counted", "unseen_in", "unseen_words"]

_UNSEEN = 5  # paths that are named
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Line:
    """The points at one line of the user's code, and the results of crashes there."""

    where: str
    calls: tuple[str, ...]
    cases: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport(Shown):
    """The results of all crashes. `merged` crashes were not tried, since each leaves what another one leaves.

    `wrong` has the problems of the undisturbed run; nothing else was tried then. `never` has the names of
    `simdist.sometimes` that ranks passed and that held in no run. A sweep that was `interrupted` has not tried all
    crashes.
    """

    points: tuple[Point, ...]
    cases: tuple[Case, ...]
    failures: tuple[Failure, ...]
    merged: int = 0
    left_out: int = 0  # beyond the limit that was set
    known: int = field(default=0, compare=False)  # crashes after which all ranks begin as after another one
    unseen: tuple[str, ...] = ()  # paths that unseen code changed
    never: tuple[str, ...] = ()
    wrong: tuple[tuple[str, str], ...] = ()
    died: int = field(default=0, compare=False)  # worker processes, or pools of them
    seconds: float = field(default=0.0, compare=False)
    call: Call | None = field(default=None, compare=False)  # of the sweep, if it was of a function
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """True if the program recovered from every crash, and all were tried."""
        return not self.interrupted and not self.failures and not self.wrong

    def __bool__(self) -> bool:
        """Equals `ok`."""
        return self.ok

    @property
    def failed(self) -> str:
        """Describe how many crashes were not survived."""
        number = len(self.failures)
        return f"{number} of {counted(len(self.cases), 'crash')} {'was' if number == 1 else 'were'} not survived"

    def lines(self) -> tuple[Line, ...]:
        """Return the points and results by line of the user's code, in the order in which the run reached the lines."""
        calls: dict[str, dict[str, None]] = {}
        for point in self.points:
            calls.setdefault(point.where, {})[point.name if point.kind != "step" else "step"] = None
        counts: dict[str, int] = {}
        for case in self.cases:
            counts[case.where] = counts.get(case.where, 0) + 1
        failed: dict[str, list[Failure]] = {}
        for failure in self.failures:
            failed.setdefault(failure.case.where, []).append(failure)
        return tuple(
            Line(where, tuple(names), counts.get(where, 0), tuple(failed.get(where, ())))
            for where, names in calls.items()
        )

    def shortest(self) -> tuple[Failure, ...]:
        """Return the failure of each kind that takes least."""
        return tuple(failure for failure, _ in self.kinds())

    def kinds(self) -> tuple[tuple[Failure, int], ...]:
        """Return the failures that are worth reporting, each with the number of others of its kind.

        Failures are of one kind if their first oracle reports the same, apart from numbers, and if all of them, or
        none, have lost something of a file under its last name. The report shows the one that takes least: a rank that
        dies rather than a host, less that is lost.
        """
        moved = renamed(self.points)
        best: dict[tuple[str, str, bool], Failure] = {}
        counts: dict[tuple[str, str, bool], int] = {}
        for failure in self.failures:
            name, text = failure.problems[0]
            key = name, _NUMBER.sub("0", text), any(path not in moved for path, _ in failure.left)
            known = best.setdefault(key, failure)
            if failure.length < known.length:
                best[key] = failure
            counts[key] = counts.get(key, 0) + 1
        return tuple((failure, counts[key] - 1) for key, failure in best.items())

    def findings(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield for each kind of failure what happened, and further lines on it."""
        for name, text in self.wrong:
            yield f"without any crash: {name}: {text}", ()
        if self.interrupted:
            yield "interrupted; not all crashes were tried", ()
        for failure, others in self.kinds():
            yield failure.account, (f"replay: {failure.replay}", *([alike(others)] if others else []))

    @property
    def cures(self) -> tuple[str, ...]:
        """Usual remedies for the losses, the most frequent first."""
        return cures(self.points, self.failures)

    def __str__(self) -> str:
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        points, tried = counted(len(self.points), "point"), counted(len(self.cases), "crash")
        survived = ": all survived" if self.cases and self.ok else ""
        yield f"{points}, {tried} tried, {self.merged} more leave the same{survived}"
        for what, lines in self.findings():
            yield from (f"  {what}", *(f"    {line}" for line in lines))
        for cure in self.cures:
            yield f"  what usually helps: {cure}"
        if self.never:
            yield f"  never reached: {', '.join(self.never)}"
        if self.unseen:
            yield f"  {unseen_words(self.unseen)}"
        if self.died:
            yield f"  {died_words(self.died)}"

    def write_tests(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write a pytest file for each failure that is shown; return their paths. For sweeps of functions.

        A function has no scenario file. One that names it (`workload.target = "module:function"`, with a `[disk]`) is
        swept by `simdist sweep FILE`, whose `--write` makes scenarios, tests and pictures.

        Raises:
            ArgumentError: the function, or an argument, has no name that a file could use.
        """
        from simdist.sweeps._replays import write_tests

        return list(write_tests(self, Path(folder)))

    def raise_for_failure(self) -> None:
        """Do nothing if the program recovered from every crash.

        Raises:
            AssertionError: it did not; its text is the report.
        """
        if not self.ok:
            raise AssertionError(f"{self.failed}\n{self}")


def counted(number: int, what: str) -> str:
    """Return a number of points or crashes, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('sh') else 's'}"


def alike(others: int) -> str:
    """Return a note about further failures of a kind."""
    return f"{others} other {'crashes lead' if others > 1 else 'crash leads'} to the same"


def unseen_words(paths: Sequence[str]) -> str:
    """Return a note on files that unseen code changed."""
    shown = ", ".join(paths[:_UNSEEN]) + (", ..." if len(paths) > _UNSEEN else "")
    if reaches_c_code():
        return f"written by C code, within which no crash was tried: {shown}"
    return f"written by C code, whose syncs can't be seen on this machine, and counted as not synced: {shown}"


def unseen_in(results: Sequence[RunResult]) -> tuple[str, ...]:
    """Return the paths that unseen code changed."""
    found: dict[str, None] = {}
    for result in results:
        for event in events_of(result.events, "storage"):
            if event.data["effect"] == "unseen":
                found[str(event.data["path"])] = None
    return tuple(found)
