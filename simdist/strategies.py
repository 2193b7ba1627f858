"""Hypothesis strategies for the worlds of a test: the number of ranks, the cluster, the order, and the faults.

    from hypothesis import given
    from simdist import strategies

    @given(strategies.schedules(), strategies.fault_plans(4, families=["slow", "network"]))
    def test_the_sum_is_right(policy, faults): ...

Failing examples shrink: to fewer ranks and faults, one host, times near 0, the plain schedule. The seed of the world is
not drawn, so that generators give the program the same numbers in all examples.

This module needs hypothesis, which the rest of simdist does not: `pip install "simdist[strategies]"`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

from simdist.cluster import Cluster, make
from simdist.errors import ArgumentError
from simdist.faults import KINDS, Fault, Surroundings
from simdist.result import RunResult
from simdist.searches import DEADLY, FAMILIES, Facts, Moment, families_of, family_problems, fitting_fault, no_fault_fits

try:
    from hypothesis import reject
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    way_out = 'simdist.strategies needs hypothesis: pip install "simdist[strategies]"'
    raise ImportError(way_out, name="hypothesis") from error

__all__ = ["clusters", "fault_plans", "schedules", "world_sizes"]

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

_Any = TypeVar("_Any")

_SEEDS = st.integers(0, 2**31 - 1)
_DEEPEST = 5  # the largest depth of probabilistic concurrency testing
_MOMENTS = 8  # of each kind, in an unknown program
_APART_NS = 1_000_000
_OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "send", "recv", "barrier")
_EFFECTS = ("write", "fsync", "rename", "create")
_STEPS = 1024  # steps of a fraction
_TURNS, _BITS = 4, 160  # tries to draw a fitting fault, and the bits for them
_LATENCIES_NS = st.integers(1_000, 1_000_000)
_BANDWIDTHS = st.sampled_from([12_500_000_000, 1_250_000_000, 125_000_000])


def world_sizes(least: int = 1, most: int = 4) -> SearchStrategy[int]:
    """Numbers of ranks, for `world_size`. They shrink to `least`."""
    return st.integers(least, most)


def schedules() -> SearchStrategy[str]:
    """Orders of the ranks, for `policy`: drawn, or by priorities. They shrink to "fifo", the usual one."""
    drawn = _SEEDS.map(lambda seed: f"random@{seed}")
    by_priority = st.builds(lambda depth, seed: f"pct:{depth}@{seed}", st.integers(2, _DEEPEST), _SEEDS)
    return st.just("fifo") | drawn | by_priority


def clusters(world_size: int) -> SearchStrategy[Cluster]:
    """Clusters for a number of ranks, for `cluster`: one host, or several behind a switch. They shrink to one host."""
    several = [hosts for hosts in range(2, world_size + 1) if world_size % hosts == 0]
    one = st.builds(partial(make, world_size, topology="one_host"))
    if not several:
        return one
    return one | st.builds(
        partial(make, world_size, topology="switched"),
        hosts=st.sampled_from(several),
        latency_ns=_LATENCIES_NS,
        bandwidth_bytes_per_s=_BANDWIDTHS,
    )


def fault_plans(
    like: int | RunResult,
    *,
    families: Sequence[str] | None = None,
    budget: int = 1,
    most: int = 4,
    max_restarts: int = 0,
    has_disk: bool = False,
    has_devices: bool = False,
) -> SearchStrategy[list[Fault]]:
    """Plans of faults, for `faults`. They shrink to an empty plan.

    Every lasting fault has an end, and all faults are optional: one that never strikes fails nothing. At most
    `max_restarts` faults, or one, may end a rank.

    Args:
        like: a run of the program without faults: they strike at its ranks' actions. Or a number of ranks: they strike
            at one of the first operations, requests to stores, effects on disks or milliseconds.
        families: as in `simdist.fuzz`; None: all that can strike.
        budget: the largest number of ranks that are struck.
        most: the largest number of faults.
        max_restarts: that of the run.
        has_disk: the run has a disk.
        has_devices: the run has virtual devices.

    Raises:
        ArgumentError: a family is unknown, no fault of them fits such a world, or a number is too small.
    """
    facts = Facts.of(like) if isinstance(like, RunResult) else _unknown(like, has_disk=has_disk)
    world = Surroundings(
        facts.world_size, max_restarts, has_disk=has_disk, has_local_disks=False, has_devices=has_devices
    )
    numbers = {"like": facts.world_size, "budget": budget, "most": most}
    problems = [f"{name}: {number} is no count; 1 is the least" for name, number in numbers.items() if number < 1]
    problems += family_problems(families)
    if problems:
        raise ArgumentError("simdist.strategies.fault_plans", problems)
    wanted = [kind for name in families or families_of(world) for kind in FAMILIES[name]]
    kinds = [kind for kind in wanted if fitting_fault(random.Random(0), KINDS[kind], facts, [0], world) is not None]
    if not kinds:
        raise ArgumentError("simdist.strategies.fault_plans", [no_fault_fits(families or ())])
    ranks = st.integers(0, facts.world_size - 1)
    victims = st.lists(ranks, unique=True, min_size=1, max_size=min(budget, facts.world_size))

    @cache  # hypothesis examines each new strategy, which takes longer than drawing from it
    def plans(struck: tuple[int, ...]) -> SearchStrategy[list[Fault]]:
        faults = st.lists(_faults(kinds, facts, struck, world), max_size=most)
        return faults.map(lambda plan: _survivable(plan, max(1, max_restarts)))

    return victims.map(tuple).flatmap(plans)


def _faults(kinds: Sequence[str], facts: Facts, victims: Sequence[int], world: Surroundings) -> SearchStrategy[Fault]:
    def fault(kind: str, number: int) -> Fault:
        found = fitting_fault(_Digits(number), KINDS[kind], facts, victims, world, turns=_TURNS)
        return reject() if found is None else found

    # One number for all fields: a fault with few draws is faster to shrink, and 0 is the plainest fault.
    return st.builds(fault, st.sampled_from(kinds), st.integers(0, 2**_BITS - 1))


class _Digits(random.Random):
    """A generator that reads its draws off a number."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self._left = number

    def _next(self, many: int) -> int:
        self._left, found = divmod(self._left, many)
        return found

    def random(self) -> float:
        return self._next(_STEPS) / _STEPS

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        numbers = range(start) if stop is None else range(start, stop, step)
        return numbers[self._next(len(numbers))]

    def randint(self, a: int, b: int) -> int:
        return a + self._next(b - a + 1)

    def choice(self, seq: SupportsLenAndGetItem[_Any]) -> _Any:
        return seq[self._next(len(seq))]


def _survivable(plan: Sequence[Fault], deaths: int) -> list[Fault]:
    found: list[Fault] = []
    for fault in plan:
        deaths -= fault.kind in DEADLY
        if fault.kind not in DEADLY or deaths >= 0:
            found.append(fault)
    return found


def _unknown(world_size: int, *, has_disk: bool) -> Facts:
    """Return the possible events of an unknown program."""
    numbers = range(1, _MOMENTS + 1)
    moments = [Moment("time", "", nth, nth, (nth - 1) * _APART_NS) for nth in numbers]
    moments += [Moment("store", "", nth, nth, 0) for nth in numbers]
    moments += [Moment("operation", name, nth, nth, 0) for name in _OPERATIONS for nth in numbers]
    moments += [Moment("storage", name, nth, nth, 0) for name in _EFFECTS for nth in numbers] if has_disk else []
    return Facts(world_size, _MOMENTS * _APART_NS, (tuple(moments),) * world_size)
