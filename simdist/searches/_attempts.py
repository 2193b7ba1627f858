"""Draws schedules, and finds in the first run where faults may strike."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simdist.faults import STORAGE, STORE, Fault, Hang
from simdist.programs import Attempt
from simdist.result import RunResult

__all__ = ["Facts", "Moment", "schedule", "trigger"]

_SHORTEST_NS, _LONGEST_NS = 1_000_000, 120_000_000_000  # how long a rank may be starved
_MOST_MOMENTS = 1000  # of a rank
# By the kind of an event: the kind of the moment, and the key of its name in the event.
_KINDS = {"store": ("store", "op"), "issue": ("operation", "op"), "storage": ("storage", "effect")}

_DEEPEST = 5  # of probabilistic concurrency testing


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that a rank did in the first run: where a fault may strike.

    `kind` is "operation", "store" (a request), "storage" (an effect on a disk) or "time" (anything else); `name` is its
    name, `nth` counts moments of its kind, `nth_of_name` those of its name, both from 1.
    """

    kind: str
    name: str
    nth: int
    nth_of_name: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a program's first run: its ranks, and the moments of each at which a fault may strike."""

    world_size: int
    virtual_time_ns: int
    moments: tuple[tuple[Moment, ...], ...]  # by rank; empty if unknown
    hosts: tuple[str, ...] = ()  # by rank; empty if unknown

    @classmethod
    def of(cls, result: RunResult) -> Facts:
        """Return the facts of a run."""
        moments: dict[int, list[Moment]] = {rank.rank: [] for rank in result.ranks}
        hosts: dict[int, str] = {}
        counts: Counter[tuple[int, str, str]] = Counter()
        for event in result.events:
            if event.kind == "start":
                hosts.setdefault(event.rank, str(event.data["host"]))
            found = moments.get(event.rank)
            if found is None or len(found) >= _MOST_MOMENTS:
                continue
            kind, key = _KINDS.get(event.kind, ("time", ""))
            name = str(event.data.get(key, ""))
            for each in {"": None, name: None}:
                counts[event.rank, kind, each] += 1
            nth, nth_of_name = counts[event.rank, kind, ""], counts[event.rank, kind, name]
            found.append(Moment(kind, name, nth, nth_of_name, event.time_ns))
        of_ranks = tuple(hosts.get(rank, "") for rank in moments)
        return cls(len(result.ranks), result.virtual_time_ns, tuple(map(tuple, moments.values())), of_ranks)


def schedule(number: int, seed: int, facts: Facts) -> Attempt:
    """Return the schedule with this number: every other one has priorities, and half of all have a starved rank."""
    source = random.Random(f"schedule {seed} {number}")
    own = source.randrange(2**31)
    name = f"pct:{source.randint(2, _DEEPEST)}" if number % 2 else "random"
    starved = facts.world_size > 1 and source.random() < 0.5
    return Attempt(policy=f"{name}@{own}", faults=(_starved(source, facts),) if starved else ())


def _starved(source: random.Random, facts: Facts) -> Fault:
    """Return a fault by which one rank gets no processor for a while, from some moment of the first run on."""
    rank = source.randrange(facts.world_size)
    duration_ns = int(_SHORTEST_NS * (_LONGEST_NS / _SHORTEST_NS) ** source.random())
    return Hang(rank=rank, duration_ns=duration_ns, optional=True, **trigger(source, facts.moments[rank]))


def trigger(source: random.Random, moments: Sequence[Moment]) -> dict[str, Any]:
    """Return the fields of a fault that strikes at one of these moments: by time, by number, or by name and number.

    Each kind of moment is equally likely: a few effects on a disk count for as much as many operations.
    """
    kinds = list(dict.fromkeys(moment.kind for moment in moments)) or ["time"]
    kind = source.choice(kinds)
    moment = source.choice([moment for moment in moments if moment.kind == kind] or [Moment("time", "", 1, 1, 0)])
    way = source.randrange(4)
    if moment.kind == "time" or way == 0:
        return {"at_ns": moment.time_ns}
    if moment.kind == "operation":
        return {"nth": moment.nth} if way == 1 else {"op": moment.name, "nth": moment.nth_of_name}
    if moment.kind == "store":
        return {"op": STORE, "nth": moment.nth}
    return {"op": STORAGE, "nth": moment.nth} if way == 1 else {"op": moment.name, "nth": moment.nth_of_name}
