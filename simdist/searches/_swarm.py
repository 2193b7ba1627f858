"""Draws plans of faults: swarm testing.

In each plan every family of faults is on or off as a whole (Groce et al., "Swarm testing", 2012): a run with crashes
only reaches states that a run with a little of everything does not. `budget` limits how many ranks are struck. Each
fault comes from the catalogue (`simdist.faults.KINDS`) and its fields from the specs of its class; a fault that does
not fit the program is drawn anew. All faults end: after the last strike there is a time in which the program has to
recover.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.faults import KINDS, OFFSET, PART, RANK, SHARE, Fault, RankFault, Surroundings, fields_of, problems_of
from simdist.programs import Attempt
from simdist.searches._attempts import Facts, trigger
from simdist.values import Bandwidth, Duration, ListOf, Maybe, OneOf, Spec, Truth, Whole, guess_or_list, items_of, shown

__all__ = ["CORRUPTING", "DEADLY", "FAMILIES", "Drawn", "families_of", "family_problems", "fitting_fault"]
__all__ += ["leaves_one", "no_fault_fits", "plan_of_faults", "unfit_families"]

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "crash": ("crash",),
    "host": ("host_crash",),
    "hang": ("hang",),
    "signal": ("signal",),
    "exception": ("raise",),
    "slow": ("slow_rank", "link_delay", "link_loss", "link_slow", "store_delay", "slow_disk"),
    "clock": ("clock_skew",),
    "network": ("partition", "isolate", "hold"),
    "store": ("store_lost", "store_away"),
    "stale": ("store_stale",),
    "disk": ("io_error", "short_write", "disk_full", "lost_sync"),
    "device": ("device_error",),
    "corruption": ("bit_flip", "bad_values", "wrong_result", "device_wrong", "bit_rot"),
}
DEADLY = (
    *("crash", "host_crash", "signal", "raise", "device_error", "store_lost"),
    *("io_error", "short_write", "disk_full"),
)
"""Kinds after which a rank may be gone: a plan has no more of them than the launcher starts ranks again, or one."""
CORRUPTING = FAMILIES["corruption"]

_MOST = 4  # faults of a plan
_TURNS = 12  # attempts to draw a fault that fits
_SHORTEST_NS, _LONGEST_NS = 1_000, 10_000_000_000
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1_000, 1_000_000_000
_LEAST_SHARE, _MOST_SHARE = 0.001, 0.5
_SIDES = ("before", "during", "after")
_ERRORS = ("RuntimeError", "DistBackendError", "OSError")
_TIMES = ("at_ns", "at_step", "at_point", "op", "nth", "every", "period_ns", "probability", "life")
_AGAIN = ("name", "after", "optional")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A plan, and the ranks that its faults may strike."""

    attempt: Attempt
    victims: tuple[int, ...]


def leaves_one(faults: Iterable[Fault], facts: Facts, spare: Sequence[Sequence[int]]) -> bool:
    """True if the faults together leave one rank of each group in `spare` alone."""
    if not spare:
        return True
    struck = frozenset[int]().union(*(fault.struck_ranks(facts.hosts) for fault in faults))
    return not any(struck.issuperset(group) for group in spare)


def plan_of_faults(
    number: int,
    seed: int,
    facts: Facts,
    world: Surroundings,
    *,
    budget: int,
    families: Sequence[str],
    spare: Sequence[Sequence[int]] = (),
) -> Drawn:
    """Return the plan with this number, and a schedule; at most `budget` ranks of the `world` are struck.

    `spare` has groups of ranks; at least one rank of each group is left alone.
    """
    source = random.Random(f"plan {seed} {number}")
    policy = source.choice(("fifo", f"random@{source.randrange(2**31)}", f"pct:3@{source.randrange(2**31)}"))
    struck = min(budget, facts.world_size)
    victims = source.sample(range(facts.world_size), source.randint(1, struck)) if struck else []
    on = [name for name in families if source.random() < 0.5] or [source.choice(families)]
    kinds = [kind for name in on for kind in FAMILIES[name]]
    deadly = max(1, world.max_restarts or 0)
    faults: list[Fault] = []
    for _ in range(source.randint(1, _MOST)):
        kind = source.choice(kinds)
        if kind in DEADLY and deadly == 0:
            continue
        fault = fitting_fault(source, KINDS[kind], facts, victims, world)
        if fault is not None and leaves_one([*faults, fault], facts, spare):
            deadly -= kind in DEADLY
            faults.append(fault)
    return Drawn(Attempt(policy=policy, faults=tuple(faults)), tuple(victims))


def families_of(world: Surroundings) -> Iterator[str]:
    """Return the families of which a fault could strike in this world."""
    unfit = list(unfit_families(world))
    in_vain = () if world.max_restarts or world.has_disk else ("host",)  # ends the run, and leaves nothing to look at
    return (name for name in FAMILIES if name not in unfit and name not in in_vain)


def unfit_families(world: Surroundings) -> Iterator[str]:
    """Return the families of which no fault can strike in this world."""
    has = {"device": world.has_devices, "disk": world.has_disk, "network": world.world_size > 1}
    has["stale"] = bool(world.max_restarts)
    return (name for name, there in has.items() if not there)


def family_problems(families: object) -> Iterator[str]:
    """Yield the problems of the families that a caller wants (None: all that fit)."""
    names = () if families is None else items_of(families)
    if names is None:
        yield f"families: expected a sequence of families, such as ['crash'], found {shown(families)}"
    for name in names or ():
        if not isinstance(name, str) or name not in FAMILIES:
            yield f"families: {name!r} is none{guess_or_list(str(name), FAMILIES)}"


def no_fault_fits(families: Iterable[str]) -> str:
    """Return the problem that all families that a caller wants are unfit."""
    return f"families: no fault of {', '.join(families)} fits; more restarts, a disk or devices may be missing"


def fitting_fault(
    source: random.Random,
    kind: type[Fault],
    facts: Facts,
    victims: Sequence[int],
    world: Surroundings,
    *,
    turns: int = _TURNS,
) -> Fault | None:
    """Draw a fault of this kind that fits the `world` and strikes `victims` at moments of `facts`, or None."""
    about: dict[str, Any] = {
        "has_disk": world.has_disk,
        "has_local_disks": world.has_local_disks,
        "has_devices": world.has_devices,
        "moves_payloads": world.moves_payloads,
    }
    for _ in range(turns):
        values = _values(source, kind, facts, victims)
        if values is None:
            return None
        fault = kind(**values, optional=True)
        if (fault.needs_disk and not world.has_disk) or (fault.needs_devices and not world.has_devices):
            continue
        if not problems_of([fault], facts.world_size, max_restarts=world.max_restarts, **about):
            return fault
    return None


def _values(source: random.Random, kind: type[Fault], facts: Facts, victims: Sequence[int]) -> dict[str, Any] | None:
    """Draw fields for a fault; None if a required one can't be drawn."""
    values: dict[str, Any] = {}
    fields = {name: each for name, each in fields_of(kind).items() if name not in _AGAIN}
    victim = source.choice(victims) if victims else 0
    others = [rank for rank in range(facts.world_size) if rank != victim] or [victim]
    start_ns = source.randrange(facts.virtual_time_ns + 1)
    for name, each in fields.items():
        if issubclass(kind, RankFault) and name in (*_TIMES, "when"):
            continue
        if name == "start_ns":
            values[name] = start_ns
        elif name == "until_ns":
            values[name] = start_ns + _duration(source)
        elif name == "at_ns":
            values[name] = start_ns
        elif name == "period_ns" and "up_ns" in fields:
            if source.random() < 0.5:
                values[name] = max(2, _duration(source))
                values["up_ns"] = source.randint(1, values[name] - 1)
        elif name == "up_ns":
            continue
        elif name == "dst":
            values[name] = source.choice(others)
        elif name == "error" and kind.kind == "raise":
            values[name] = source.choice(_ERRORS)
        elif each.spec == RANK or each.spec == Maybe(RANK):
            values[name] = victim
        else:
            drawn = _drawn(source, each.spec, victims, facts)
            if drawn is not ...:
                values[name] = drawn
            elif each.default is ...:
                return None
    if issubclass(kind, RankFault):
        values |= trigger(source, facts.moments[victim])
        if "at_ns" not in values and source.random() < 0.5:
            values["when"] = source.choice(_SIDES)
    return values


def _drawn(source: random.Random, spec: Spec, victims: Sequence[int], facts: Facts) -> Any:
    """Draw a value of a field; `...` for its default."""
    inner = spec.spec if isinstance(spec, Maybe) else spec
    if isinstance(inner, Duration):
        return _duration(source)
    if isinstance(inner, Bandwidth):
        return int(_LEAST_BANDWIDTH * (_MOST_BANDWIDTH / _LEAST_BANDWIDTH) ** source.random())
    if inner in (SHARE, PART):
        return _share(source)
    if isinstance(inner, Truth):
        return source.random() < 0.5
    if inner == OFFSET:
        return source.choice((-1, 1)) * _duration(source)
    if isinstance(inner, ListOf):
        rest = [rank for rank in range(facts.world_size) if rank not in victims]
        return (tuple(sorted(victims)), tuple(rest))
    if isinstance(inner, OneOf) and source.random() < 0.5:
        return source.choice(inner.known)
    if isinstance(inner, Whole) and not isinstance(spec, Maybe) and inner.most is not None and inner.most < 100:
        return source.randint(inner.least or 0, inner.most)
    return ...


def _share(source: random.Random) -> float:
    share: float = _LEAST_SHARE * (_MOST_SHARE / _LEAST_SHARE) ** source.random()
    return round(share, 4)


def _duration(source: random.Random) -> int:
    return int(_SHORTEST_NS * (_LONGEST_NS / _SHORTEST_NS) ** source.random())
