"""A program on trial: run with faults, and held against its run without."""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.result import RunResult
from simdist.searches._attempts import Attempt, Facts
from simdist.searches._outcomes import Cause, Ran, cause_of
from simdist.searches._programs import Bounds, Program
from simdist.searches._verdicts import Verdict, verdict_of

__all__ = ["Trial"]

_LONGEST_NS = 240_000_000_000  # longer than all faults of an attempt together, and what waits for them


@dataclass(slots=True)
class Trial:
    """A program with its run without faults. Call it inside `program.ready()`."""

    program: Program
    plain: RunResult | None = field(init=False)
    wrong: Cause | None = field(init=False)  # with the program already, without any fault

    def __post_init__(self) -> None:
        ran = self.program.run(Attempt())
        self.plain, self.wrong = ran.result, cause_of(ran)

    @property
    def facts(self) -> Facts:
        """Of the run without faults."""
        assert self.plain is not None
        return Facts.of(self.plain)

    def verdict(self, attempt: Attempt) -> Verdict:
        """What a run of the attempt comes to."""
        return self.judge(self.run(attempt), attempt)

    def judge(self, ran: Ran, attempt: Attempt) -> Verdict:
        """What this run of the attempt came to."""
        assert self.plain is not None
        return verdict_of(ran, attempt, self.plain)

    def run(self, attempt: Attempt) -> Ran:
        """Run it, but not for ever."""
        assert self.plain is not None
        return self.program.run(attempt, Bounds.of(self.plain, _LONGEST_NS))
