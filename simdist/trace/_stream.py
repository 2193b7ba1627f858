"""A run's packed records as events, whose data have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from simdist.records import Packed, fields_of, kinds
from simdist.result import Event

__all__ = ["EventStream", "event_of", "events_of"]

# Records of a kind differ at most in fields at the end, so the longest has the names of all.
_NAMES = {kind: tuple(fields_of(found[-1])) for kind, found in kinds().items()}


class EventStream(Sequence[Event]):
    """The records of a run as `Event`s, made on access."""

    __slots__ = ("_records",)

    def __init__(self, records: list[Packed]) -> None:
        self._records = records

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [event_of(record) for record in self._records[index]]
        return event_of(self._records[index])

    def __len__(self) -> int:
        return len(self._records)

    def of_kinds(self, kinds: Sequence[str]) -> list[Event]:
        """Return the events of these kinds; the others are not made."""
        return [event_of(record) for record in self._records if record[1] in kinds]


def events_of(events: Sequence[Event], *kinds: str) -> list[Event]:
    """Return the events of these kinds, in order."""
    if isinstance(events, EventStream):
        return events.of_kinds(kinds)
    return [event for event in events if event.kind in kinds]


def event_of(record: Packed) -> Event:
    """Return a packed record as an `Event`; values without a name, because the kind is unknown, are left out."""
    time_ns, kind, rank, *values = record
    names = _NAMES.get(kind, ())
    data = {
        name: list(value) if isinstance(value, tuple) else value for name, value in zip(names, values, strict=False)
    }
    return Event(time_ns, kind, rank, data)
