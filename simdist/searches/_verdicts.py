"""Judges a run with faults: it passed, it failed as its faults explain, or it shows a bug.

A failure is explained if:

- A rank is gone for good, and the launcher has no restart left: the others fail or wait.
- A fault struck in the last life, and ranks raise what programs get then: torch's errors of communication, an error of
  the operating system, the exception of the fault itself.
- A fault changed values: anything may follow.

It is not explained if a rank hangs although everything has healed; if an exception is of another kind; if the last life
fails although no fault struck in it, because then the program did not recover; if, without a restart, a result differs
from that without faults; or if a judge finds something. After a restart results are compared only if the scenario
expects it: many programs return what their last life did.

Doubt: a program may turn an error of communication into one of its own, which is then reported. Conversely, an error of
communication that has nothing to do with the fault is overlooked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simdist.errors import LivelockError
from simdist.faults import LastingFault
from simdist.programs import Attempt, EndlessError, Ran
from simdist.result import RankResult, RunResult
from simdist.scenario import difference
from simdist.searches._outcomes import Cause, cause_of
from simdist.searches._swarm import CORRUPTING, DEADLY
from simdist.values import shortened

__all__ = ["Verdict", "verdict_of"]

_EXPECTED = ("DistError", "ConnectionError", "OSError", "TimeoutError")  # bases of what faults lead to
_GLOO = ("gloo", "nccl", "timed out", "timeout", "connection", "store", "socket", "peer")  # of a plain RuntimeError


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a run: its `kind`, and the `cause` of a failure, also if the fault explains it."""

    kind: Literal["passed", "explained", "found"]
    cause: Cause | None = None


def verdict_of(ran: Ran, attempt: Attempt, plain: RunResult) -> Verdict:
    """Return the verdict on a run, compared with the run without faults."""
    cause = cause_of(ran)
    result = ran.result
    if result is None:
        mortal = any(fault.kind in DEADLY for fault in attempt.faults)
        asks = isinstance(ran.error, LivelockError | EndlessError)  # for ever, for what never arrives
        return Verdict("explained" if cause is None or (mortal and asks) else "found", cause)
    corrupted = any(fault.struck and fault.kind in CORRUPTING for fault in result.faults)
    if cause is None and result.restarts == 0:
        cause = _wrong(result, plain)
    if cause is None:
        return Verdict("passed")
    if corrupted or _explains(result, attempt):
        return Verdict("explained", cause)
    return Verdict("found", cause)


def _wrong(result: RunResult, plain: RunResult) -> Cause | None:
    """Return the first result that differs from the run without faults."""
    for rank, other in zip(result.ranks, plain.ranks, strict=False):
        text = difference(rank.value, other.value) if rank.status == other.status == "returned" else None
        if text is not None:
            said = f"rank {rank.rank} returned another result than without faults: {shortened(text, 120)}"
            return Cause("wrong", said, "wrong", rank.rank, rank.where)
    return None


def _explains(result: RunResult, attempt: Attempt) -> bool:
    """True if the faults that struck in the last life explain how its ranks ended."""
    first = result.first_failure()
    if first is None:
        return False
    begin_ns = max((event.time_ns for event in result.events if event.kind == "restart"), default=0)
    at_work = [
        reported
        for fault, reported in zip(attempt.faults, result.faults[-len(attempt.faults) :], strict=True)
        if any(time_ns >= begin_ns for time_ns in reported.struck_ns)
        or (reported.struck and isinstance(fault, LastingFault) and (fault.until_ns or 0) > begin_ns)
    ]
    if not at_work:
        return False
    gone = [ending for reported in at_work for ending in reported.ended if ending[2] != "hung"]
    return all(rank.ok or _is_explained(rank, bool(gone), attempt) for rank in result.ranks)


def _is_explained(rank: RankResult, gone: bool, attempt: Attempt) -> bool:
    if rank.status == "hung":
        return gone
    error = rank.exception
    if error is None:  # killed, or its program exited by choice, as after a signal
        return True
    names = [base.__name__ for base in type(error).__mro__]
    if any(name in names for name in _EXPECTED):
        return True
    text = str(error).lower()
    if "injected by a fault" in text:
        return True
    return type(error).__name__ == "RuntimeError" and any(word in text for word in _GLOO)
