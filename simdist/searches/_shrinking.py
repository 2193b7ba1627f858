"""Finds the smallest attempt that still fails in the same way: fewest faults, ranks, steps, the plainest schedule.

For an order of a systematic search: as few choices as possible other than the first task.

The method is greedy, as fault plans are short: leave out each fault, then try everything else that is simpler, and
begin again after each success, until nothing more can be left out. "The same way" is one cause: see `Cause.key`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from simdist.errors import SimdistError
from simdist.faults import Fault, fields_of
from simdist.programs import Attempt, Program

__all__ = ["Shrunk", "ShrunkOrder", "shrunk", "shrunk_order"]

_MOST = 150  # runs
_DURATIONS = ("duration_ns", "delay_ns", "down_ns", "jitter_ns", "tail_ns", "offset_ns")
_MS = 1_000_000
_ORDER = "order:"
_COMMON = ("name", "after", "optional")
_MOMENTS = (
    *("at_ns", "at_step", "at_point", "op", "nth", "every", "period_ns", "probability", "start_ns", "until_ns"),
    "duration_ns",
)
"""When a fault strikes, and for how long: other moments may be simpler, none is not."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failure: nothing can be left out of it, unless the `runs` were used up (`minimal` is False)."""

    program: Program
    attempt: Attempt
    runs: int
    minimal: bool


def shrunk(program: Program, attempt: Attempt, fails: Callable[[Program, Attempt], bool]) -> Shrunk:
    """Make a failure smaller; `fails` returns whether an attempt still fails in the same way."""
    runs = 0
    seen: list[tuple[Program, Attempt]] = [(program, attempt)]
    while True:
        for smaller, simpler in _simpler(program, attempt):
            if (smaller, simpler) in seen:
                continue
            if runs == _MOST:
                return Shrunk(program, attempt, runs, minimal=False)
            seen.append((smaller, simpler))
            runs += 1
            if _still(fails, smaller, simpler):
                program, attempt = smaller, simpler
                break
        else:
            return Shrunk(program, attempt, runs, minimal=True)


@dataclass(frozen=True, slots=True)
class ShrunkOrder:
    """The plainest order that fails: at `choices` of the first one's choices, a task other than the first goes next.

    It took `runs` runs. `minimal` is False if they were used up.
    """

    attempt: Attempt
    choices: int
    of_choices: int
    runs: int
    minimal: bool


def shrunk_order(attempt: Attempt, fails: Callable[[Attempt], bool]) -> ShrunkOrder:
    """Leave choices out of an order, many at once and then each, and take earlier tasks at those that are left.

    `fails` returns whether an attempt still fails in the same way. If another task runs at a choice, the later choices
    may change; all that counts is that the run still fails.
    """
    first = [int(place) for place in attempt.policy.removeprefix(_ORDER).split(".")]
    runs = 0

    def still(tried: list[int]) -> bool:
        nonlocal runs
        runs += 1
        try:
            return fails(_ordered(attempt, tried))
        except SimdistError:  # the order no longer fits the program
            return False

    places = first
    while runs < _MOST:
        simpler = next((tried for tried in _simpler_orders(places) if runs < _MOST and still(tried)), None)
        if simpler is None:
            break
        places = simpler
    choices, of_choices = (sum(map(bool, each)) for each in (places, first))
    return ShrunkOrder(_ordered(attempt, places), choices, of_choices, runs, minimal=runs < _MOST)


def _ordered(attempt: Attempt, places: list[int]) -> Attempt:
    last = max((index for index, place in enumerate(places) if place), default=0)
    return replace(attempt, policy=_ORDER + ".".join(map(str, places[: last + 1])))


def _simpler_orders(places: list[int]) -> Iterator[list[int]]:
    """Yield the order with fewer choices, the plainest first; then with earlier tasks."""
    chosen = [index for index, place in enumerate(places) if place]
    size = len(chosen)
    while size:
        for start in range(0, len(chosen), size):
            left_out = chosen[start : start + size]
            yield [0 if index in left_out else place for index, place in enumerate(places)]
        size //= 2
    for index in chosen:
        for lower in range(1, places[index]):
            yield [*places[:index], lower, *places[index + 1 :]]


def _still(fails: Callable[[Program, Attempt], bool], program: Program, attempt: Attempt) -> bool:
    try:
        return fails(program, attempt)
    except SimdistError:  # the rest does not fit together
        return False


def _simpler(program: Program, attempt: Attempt) -> Iterator[tuple[Program, Attempt]]:
    """Yield attempts with one thing less, the simplest first."""
    faults = attempt.faults
    if len(faults) > 2:
        half = len(faults) // 2
        yield program, replace(attempt, faults=faults[:half])
        yield program, replace(attempt, faults=faults[half:])
    for index in range(len(faults)):
        yield program, replace(attempt, faults=(*faults[:index], *faults[index + 1 :]))
    if attempt.policy != "fifo":
        yield program, replace(attempt, policy="fifo")
    for smaller in program.smaller():
        yield smaller, attempt
    for index, fault in enumerate(faults):
        for simpler in _simpler_faults(fault):
            yield program, replace(attempt, faults=(*faults[:index], simpler, *faults[index + 1 :]))


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    """Yield the fault with fields at their defaults, or a rounder, shorter time."""
    fields = {name: each for name, each in fields_of(type(fault)).items() if name not in _COMMON}
    said = {name: each for name, each in fields.items() if getattr(fault, name) != each.default}
    more = {name: each.default for name, each in said.items() if each.default is not ... and name not in _MOMENTS}
    # All of them at once, each alone, and pairs that need each other.
    sizes = dict.fromkeys(size for size in (len(more), 1, 2) if 0 < size <= len(more))
    for size in sizes:
        for names in itertools.combinations(more, size):
            yield replace(fault, **{name: more[name] for name in names})
    for name in said:
        value = getattr(fault, name)
        if name in _DURATIONS and isinstance(value, int):
            for shorter in (_MS, 100 * _MS, 1000 * _MS):
                if shorter < value:
                    yield _with(fault, name, shorter)
        elif name in ("nth", "at_ns", "start_ns") and isinstance(value, int):
            first = 1 if name == "nth" else 0
            for lower in dict.fromkeys((first, value // 2, value - 1 if name == "nth" else first)):
                if first <= lower < value:
                    yield _with(fault, name, lower)


def _with(fault: Fault, name: str, value: Any) -> Fault:
    changed: dict[str, Any] = {name: value}
    return replace(fault, **changed)
