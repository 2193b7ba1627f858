"""The result of a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simdist.sweeps._calls import Call
from simdist.sweeps._points import STRIKES, Case

__all__ = ["Failure", "Failures", "Tried"]

_SHOWN = 3  # paths whose remains are shown


@dataclass(frozen=True, slots=True)
class Failure:
    """A crash after which an oracle failed.

    `left` names each path that was not as its host saw it; `problems` has each oracle that failed, with the evidence.
    """

    case: Case
    left: tuple[tuple[str, str], ...]
    problems: tuple[tuple[str, str], ...]
    replay: str

    @property
    def length(self) -> tuple[int, int, int, int]:
        """A sort key: failures that take less come first."""
        crashes = len(self.case.faults)
        return crashes, STRIKES.index(self.case.strike), len(self.left), self.case.outcome or 0

    @property
    def account(self) -> str:
        """A description of the failure, in one sentence."""
        reported = [f"{path} {text}" for path, text in self.left[:_SHOWN]]
        if len(self.left) > _SHOWN:
            reported.append(f"and {len(self.left) - _SHOWN} more")
        disk = f": {', '.join(reported)}" if reported else ""
        step = "" if self.case.point.step is None else f", in step {self.case.point.step}"
        return f"{self.case.words}{step}{disk}; {self.problems[0][1]}"


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a crash: None if it was survived.

    `begun` names what the last life has begun with, if nothing else decides how it goes on. `sometimes` has the names
    of `simdist.sometimes` that ranks passed, and whether they held.
    """

    failure: Failure | None
    begun: str | None = None
    sometimes: tuple[tuple[str, bool], ...] = ()


class Failures(Protocol):
    """The failures of a sweep: its report."""

    @property
    def call(self) -> Call | None:
        """The call of the sweep, if it was of a function."""
        ...

    def shortest(self) -> tuple[Failure, ...]:
        """Return the failure of each kind that takes least."""
        ...
