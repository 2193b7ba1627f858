"""The first thing that is not the same in two recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from simdist.determinism._recording import Noted, Recording
from simdist.frames import Line
from simdist.trace import event_of

__all__ = ["Difference", "Version", "compare"]


@dataclass(frozen=True, slots=True)
class Version:
    """What one run has at the first difference. `event` is None if the run has ended, or has no events."""

    event: Mapping[str, Any] | None
    rank: int
    site: Line | None
    step: int = -1


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two runs: in event `index` of world `world`, or in `what`, if it is not an event."""

    world: int
    index: int
    one: Version
    other: Version
    what: str = "event"

    @property
    def fields(self) -> list[str]:
        """The fields of the event that are not the same."""
        one, other = self.one.event or {}, self.other.event or {}
        return [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]


def compare(one: Recording, other: Recording) -> Difference | None:
    """The first difference; None if every event (but warnings), every returned value and every error is the same."""
    for index, (ours, theirs) in enumerate(zip_longest(one.worlds, other.worlds)):
        if ours is None or theirs is None:
            counts = (Version({"worlds": len(run.worlds)}, -1, None) for run in (one, other))
            return Difference(index, 0, next(counts), next(counts), "number of worlds")
        pairs = zip_longest(*([event for event in world.events if not event.is_warning] for world in (ours, theirs)))
        for place, (event, opposite) in enumerate(pairs):
            if event is None or opposite is None or event.compared != opposite.compared:
                return Difference(index, place, _version(event), _version(opposite))
        for rank, (value, reply) in enumerate(zip_longest(ours.values, theirs.values)):
            if value != reply:
                values = (Version({"rank": rank, "returned": each}, rank, None) for each in (value, reply))
                return Difference(index, len(ours.events), next(values), next(values), "returned value")
    if one.error != other.error:
        errors = (Version({"error": error or "none"}, -1, None) for error in (one.error, other.error))
        return Difference(len(one.worlds), 0, next(errors), next(errors), "error")
    return None


def _version(noted: Noted | None) -> Version:
    if noted is None:
        return Version(None, -1, None)
    event = event_of(noted.record.packed)
    data = {"kind": event.kind, "rank": event.rank, "time_ns": event.time_ns, **event.data}
    if noted.whole:
        data["whole payload"] = json.dumps(noted.whole)
    return Version(data, event.rank, noted.site, noted.step)
