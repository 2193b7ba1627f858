"""Finds when a failing schedule became inevitable: the moment before which new draws still pass.

The failing schedule is kept for K decisions, and the rest is drawn anew, a few times. Bisection finds the smallest K
after which all of these runs fail. The result holds for these draws and is no proof: a rare way to pass may be
missed, and with it a later moment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from simdist.programs import Attempt, Ran
from simdist.result import Event, RunResult
from simdist.searches._outcomes import cause_of
from simdist.searches._report import TurningPoint
from simdist.trace import event_line
from simdist.values import shortened

__all__ = ["turning_point"]

_DRAWS = 6
_ALIKE = 3  # draws in which the failing run repeats itself: nothing seems to be left to decide
_MOST = 2**20  # decisions


def turning_point(attempt: Attempt, run: Callable[[Attempt], Ran]) -> TurningPoint | None:
    """Return the last point at which the failing attempt could have passed; None if it never could, or always can."""
    if "@" not in attempt.policy or "+" in attempt.policy:
        return None
    failing = run(attempt).result
    if failing is None:
        return None
    passed: dict[int, RunResult | None] = {}
    runs = 0

    def passing(kept: int) -> RunResult | None:
        """Return a run that passes although it keeps this many decisions; None if all draws fail."""
        nonlocal runs
        alike = 0
        for seed in range(_DRAWS):
            runs += 1
            policy = f"{attempt.policy}+{kept}@{seed}"
            ran = run(Attempt(policy=policy, faults=attempt.faults))
            if cause_of(ran) is None:
                return ran.result
            if ran.result is not None and ran.result.digest == failing.digest:
                alike += 1
                if alike == _ALIKE and kept:
                    break
        return None

    passed[0] = passing(0)
    if passed[0] is None:
        return None
    low, high = 0, 1
    while (found := passing(high)) is not None:
        passed[high] = found
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        passed[middle] = passing(middle)
        low, high = (middle, high) if passed[middle] is not None else (low, middle)
    last = passed[low]
    assert last is not None
    return _reported(failing, last, high, runs)


def _reported(failing: RunResult, passing: RunResult, decision: int, runs: int) -> TurningPoint | None:
    # Output follows from what ranks do, so two runs never differ there first.
    done, other_done = ([event for event in run.events if event.kind != "output"] for run in (failing, passing))
    for one, other in itertools.zip_longest(done, other_done):
        if one is None or other is None or event_line(one) != event_line(other):
            first = one or other
            assert first is not None
            return TurningPoint(decision, first.time_ns, first.rank, _words(one), _words(other), _DRAWS, runs)
    return None


def _words(event: Event | None) -> str:
    if event is None:
        return "nothing more happens"
    data = ", ".join(f"{name} {value}" for name, value in event.data.items() if value not in ("", None, ()))
    who = f"rank {event.rank} " if event.rank >= 0 else ""
    return shortened(f"{who}{event.kind} {data}", 110)
