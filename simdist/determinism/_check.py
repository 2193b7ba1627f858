"""The passes of a check.

1. The program runs here, and again in a fresh process, under another hash seed, with folders in reverse order and
   the garbage collector on another schedule. If every event is the same, the check ends.
2. Otherwise it runs in two more fresh processes, traced line by line, to find the line that began the difference.
3. If those two agree, the difference is between this process and any fresh one: it runs here again, traced.
4. If that run agrees with them, too, only the very first run was different: it left something behind, a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from simdist.determinism._causes import Cause, cause_of, cause_of_file
from simdist.determinism._compare import Difference, compare
from simdist.determinism._fresh import Fresh, Job, in_fresh_process
from simdist.determinism._recorder import record
from simdist.determinism._recording import Recording, Seen
from simdist.determinism._report import DeterminismReport
from simdist.determinism._slice import origin_of
from simdist.errors import SimdistError
from simdist.frames import Line
from simdist.process import current_process

__all__ = ["check", "check_recording", "explained", "other_hash_seed", "require_host"]

_ATTEMPTS = 2  # runs that differ only sometimes may happen to agree


def other_hash_seed() -> str:
    """A hash seed that is not this process's."""
    return "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"


def check(call: Callable[[], object], job: Job, *, target: str, fresh: Fresh = in_fresh_process) -> DeterminismReport:
    """Call `call` here, do `job`, which must be the same, in a fresh process, and compare; explain what differs.

    Raises:
        SimdistError: the fresh process ended without a result, or the caller is a simulated rank.
    """
    require_host()
    return check_recording(record(call), job, call, target=target, fresh=fresh)


def require_host() -> None:
    """Refuse to check from inside a world.

    Raises:
        SimdistError: the caller is a simulated rank.
    """
    process = current_process()
    if process is not None:
        raise SimdistError(
            f"rank {process.rank}: a determinism check runs worlds of its own, and waits for a fresh process in real "
            "time; call it from the program that runs the world"
        )


def check_recording(
    first: Recording, job: Job, again: Callable[[], object], *, target: str, fresh: Fresh = in_fresh_process
) -> DeterminismReport:
    """Like `check`, for a program that has run here already and was recorded; `again` runs it here again.

    Raises:
        SimdistError: the fresh process ended without a result.
    """
    require_host()
    seed = other_hash_seed()
    second = fresh(replace(job, shake=True), seed)
    difference = compare(first, second)
    if difference is None:
        return DeterminismReport(target, first.digests, second.digests, seed, programs=first.programs)
    cause = _explained(first, second, difference, job, again, fresh, seed)
    return DeterminismReport(target, first.digests, second.digests, seed, difference, cause, first.programs)


def _explained(
    first: Recording,
    second: Recording,
    difference: Difference,
    job: Job,
    again: Callable[[], object],
    fresh: Fresh,
    seed: str,
) -> Cause | None:
    traced: Recording | None = None
    for _ in range(_ATTEMPTS):
        one = fresh(replace(job, lines=True), "1" if seed == "2" else "2")
        traced = fresh(replace(job, lines=True, shake=True), seed)
        parting = compare(one, traced)
        if parting is not None:
            cause = explained(one, traced, parting)
            if cause is not None:
                return cause
        elif compare(first, one) is not None:
            break  # this process is what differs
    if traced is None:
        return None
    here = record(again, lines=True)
    parting = compare(here, traced)
    if parting is not None:
        origin = origin_of(here, traced, parting)
        if origin is not None:
            return cause_of(origin, parting, here.threads, other_process=True)
    return _left_over(first, second, difference)


def explained(one: Recording, other: Recording, difference: Difference) -> Cause | None:
    """The cause of the difference between two traced runs of fresh processes; None if no line shows it."""
    origin = origin_of(one, other, difference)
    return None if origin is None else cause_of(origin, difference, one.threads, other_process=False)


def _left_over(first: Recording, second: Recording, difference: Difference) -> Cause | None:
    """The cause if one of the runs found a file or a folder that the other did not; else None."""
    for rank in dict.fromkeys([difference.one.rank, difference.other.rank, *sorted(first.seen)]):
        ours, theirs = _by_site(first.seen.get(rank, ())), _by_site(second.seen.get(rank, ()))
        for site, values in ours.items():
            for one, other in zip(values, theirs.get(site, ()), strict=False):
                if one != other:
                    return cause_of_file(site[0], site[1], rank, (one, other))
    return None


def _by_site(seen: Iterable[Seen]) -> dict[Line, list[str]]:
    found: dict[Line, list[str]] = {}
    for each in seen:
        found.setdefault(each.site, []).append(each.value)
    return found
