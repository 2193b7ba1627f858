"""The outcome of a world, with its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from simdist.errors import RunFailedError
from simdist.result._outcome import Outcome, RankResult, Value, first_to_fail
from simdist.result._report import report_of
from simdist.values import Json, Shown

__all__ = ["RunResult"]


@dataclass(frozen=True, slots=True)
class RunResult(Shown, Outcome[Value], Generic[Value]):
    """The outcome of one world.

    `digest` is a hash over every event; equal digests mean equal runs. `deadlock` is the report of the first cycle of
    ranks that waited for each other, if there was one; with a backend that has timeouts the ranks then went on to
    time out. `replay` is the call or command that repeats the run. `backend`, `policy` and `strict` are the run's
    settings; empty if unknown. `faults` says of each fault whether it struck. `shared_state` names what ranks changed
    in the host's process that all of them share, and that nothing keeps apart. `refused` has the texts of what was not
    supported, also where the program caught the error. `programs` names, each with its line, the programs outside the
    simulation that ranks started, and the connections that ranks made to the outside: their answers are not a function
    of the seed. `judges` names the judges of the run, and `findings` is what they and `simdist.always` found.
    `sometimes` has each name of `simdist.sometimes` that a rank passed, and whether it held. `backends` are those over
    which ranks made groups.

    For type checkers, `RunResult[int]` is the result of a function that returns an `int`.
    """

    @property
    def ok(self) -> bool:
        """True if every rank returned or exited with code 0, every fault struck that is not optional, and no judge
        found anything."""
        return all(rank.ok for rank in self.ranks) and all(fault.ok for fault in self.faults) and not self.findings

    @property
    def values(self) -> list[Value]:
        """What each rank's function returned, by rank; None if it did not return."""
        return [rank.value for rank in self.ranks]

    def __str__(self) -> str:
        """The run's report: how many ranks failed, each rank's end and last operations, faults, findings, replay."""
        report = report_of(self)
        return f"{report.headline}\n{report}" if report.headline else str(report)

    def first_failure(self) -> RankResult[Value] | None:
        """The rank that failed first in virtual time; ties go to causes rather than effects, then by rank."""
        return first_to_fail(self.ranks)

    def raise_for_failure(self) -> None:
        """Do nothing if the run is `ok`.

        Raises:
            RunFailedError: its text is the run's report (`report_of`): each rank's end and last operations, the
                faults that struck and those that never did, what judges found, the collectives that ranks did not call
                alike, how to replay it. Its `__cause__` is the first failed rank's exception, or the deadlock.
        """
        if self.ok:
            return
        first = self.first_failure()
        raise RunFailedError(str(self)) from (first and first.exception) or self.deadlock

    def summary(self) -> dict[str, Json]:
        """The result as JSON-ready data, without the events; `report` is the text of a run that failed."""
        return {
            "ok": self.ok,
            "digest": self.digest,
            "virtual_time_ns": self.virtual_time_ns,
            "restarts": self.restarts,
            "seed": self.seed,
            "deadlock": None if self.deadlock is None else str(self.deadlock),
            "ranks": [rank.summary() for rank in self.ranks],
            "faults": [fault.summary() for fault in self.faults],
            "shared_state": list(self.shared_state),
            "refused": list(self.refused),
            "programs": list(self.programs),
            "judges": list(self.judges),
            "findings": [finding.summary() for finding in self.findings],
            "sometimes": dict(self.sometimes),
            "report": None if self.ok else str(report_of(self)),
        }
