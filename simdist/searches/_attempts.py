"""What is tried: a run's schedule and its faults, and how schedules are drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simdist.faults import STORE, Fault, Hang
from simdist.result import RunResult

__all__ = ["Attempt", "Facts", "Moment", "schedule", "trigger"]

_SHORTEST_NS, _LONGEST_NS = 1_000_000, 120_000_000_000  # for which a rank is starved
_MOST_MOMENTS = 1000  # of a rank
_KINDS = {"store": "store", "issue": "operation"}  # by the kind of an event

Moment = tuple[str, int]
"""A "store" request or an "operation" of a rank, by its number from 1; or a "time"."""

_DEEPEST = 5  # of probabilistic concurrency testing


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run: the policy by which tasks take turns, with the schedule's seed in its name, and faults.

    The seed of the run itself stays the same in all attempts, so that generators give the program the same numbers.
    """

    policy: str = "fifo"
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the first run says of a program: its ranks, and the moments of each at which a fault may strike."""

    world_size: int
    virtual_time_ns: int
    moments: tuple[tuple[Moment, ...], ...]  # by rank

    @classmethod
    def of(cls, result: RunResult) -> Facts:
        """Those of a run."""
        moments: dict[int, list[Moment]] = {rank.rank: [] for rank in result.ranks}
        counts: Counter[tuple[int, str]] = Counter()
        for event in result.events:
            found = moments.get(event.rank)
            if found is None or len(found) >= _MOST_MOMENTS:
                continue
            kind = _KINDS.get(event.kind, "time")
            counts[event.rank, kind] += 1
            found.append((kind, event.time_ns if kind == "time" else counts[event.rank, kind]))
        return cls(len(result.ranks), result.virtual_time_ns, tuple(map(tuple, moments.values())))


def schedule(number: int, seed: int, facts: Facts) -> Attempt:
    """The schedule with this number: every other one by priorities, half of them with a rank that is starved."""
    source = random.Random(f"schedule {seed} {number}")
    own = source.randrange(2**31)
    name = f"pct:{source.randint(2, _DEEPEST)}" if number % 2 else "random"
    starved = facts.world_size > 1 and source.random() < 0.5
    return Attempt(policy=f"{name}@{own}", faults=(_starved(source, facts),) if starved else ())


def _starved(source: random.Random, facts: Facts) -> Fault:
    """One rank gets no processor for a while, from some moment of the first run on."""
    rank = source.randrange(facts.world_size)
    duration_ns = round(_SHORTEST_NS * (_LONGEST_NS / _SHORTEST_NS) ** source.random())
    return Hang(rank=rank, duration_ns=duration_ns, optional=True, **trigger(source, facts.moments[rank]))


def trigger(source: random.Random, moments: Sequence[Moment]) -> dict[str, Any]:
    """The fields of a fault that strikes at one of these moments."""
    kind, number = source.choice(moments) if moments else ("time", 0)
    if kind == "time":
        return {"at_ns": number}
    return {"nth": number, "op": STORE} if kind == "store" else {"nth": number}
