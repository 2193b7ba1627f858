"""Usual remedies for the failures that a sweep has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from simdist.sweeps._points import Case, Point

__all__ = ["cures", "renamed"]

_WHOLE = "write under another name, os.fsync that file, then rename it: a file under its last name is always whole"
_BYTES = "os.fsync a file before it is renamed: a new name may be on the disk sooner than the bytes"
_NAMES = "os.fsync the folder after a file is made or renamed in it: until then the old name, or none, may be back"
_STATE = "save all that the next step depends on, as it is at one step: optimizer, scaler, generators, sampler, step"
_LOCAL = "let all ranks agree on a checkpoint before any loads it: a host may find another one's, or none"
_NOTICE = "in a handler of SIGTERM only note it: save at the end of the step, and leave with another exit code than 0"
_TIME_OUT = "let a time-out end the rank, so that the launcher starts all again: after it ranks are at different steps"
_ORDER = "take away the old, and name the new one, only when all ranks have the new one on the disk"

_EQUALITY = (
    "equal_states",
    "equal_values",
    "samples_once",
    "same_as_one_rank",
    "same_as_without_faults",
    "same_states_as_without_faults",
)


class _Failure(Protocol):
    """A crash that was not survived; see `SweepReport`."""

    @property
    def case(self) -> Case: ...

    @property
    def left(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def problems(self) -> tuple[tuple[str, str], ...]: ...


def cures(points: Sequence[Point], failures: Sequence[_Failure]) -> tuple[str, ...]:
    """Return for each kind of loss the usual remedy, the most frequent first."""
    moved = renamed(points)
    swaps_only = all(failure.case.strike == "swap" for failure in failures)
    counts: dict[str, int] = {}
    for failure in failures:
        cure = _LOCAL if swaps_only else _cure_of(failure, moved)
        counts[cure] = counts.get(cure, 0) + 1
    return tuple(sorted(counts, key=lambda cure: -counts[cure]))


def renamed(points: Sequence[Point]) -> dict[str, str]:
    """Return the names that files lose in the end, each with its new name: they are not read under the old one."""
    moves = (point.path.split(" to ", 1) for point in points if point.name == "rename")
    return {move[0]: move[-1] for move in moves}


def _cure_of(failure: _Failure, moved: Mapping[str, str]) -> str:
    problem, said = failure.problems[0]
    left = {path: text for path, text in failure.left if path not in moved}
    cut = [path for path, text in left.items() if text.startswith(("is empty", "has ")) and text != "has its bytes"]
    if cut:
        return _BYTES if any(path in moved.values() for path in cut) else _WHOLE
    if left:
        return _NAMES
    if failure.case.strike == "sigterm":
        return _NOTICE
    if failure.case.strike == "hang":
        return _TIME_OUT
    if problem in _EQUALITY:
        return _STATE
    return _ORDER if problem == "max_steps_lost" or "FileNotFoundError" in said else _WHOLE
