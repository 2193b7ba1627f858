"""The names of what the kernel's flat records hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from simdist.result import Event
from simdist.values import Duration, ListOf, Maybe, OneOf, Spec, Text, Truth, Whole

__all__ = ["FIELDS", "VALUES", "EventStream", "event_of"]

# Kind -> names of the values behind (time_ns, kind, rank).
FIELDS: dict[str, tuple[str, ...]] = {
    "start": ("life", "pid", "host"),
    "exit": ("status", "exit_code", "life"),
    "restart": ("life",),
    "group": ("group", "ranks", "desc"),
    "issue": ("op", "group", "seq", "nbytes", "dtype", "shape", "peer", "async_op", "tag"),
    "delay": ("duration_ns", "op"),
    "complete": ("op", "group", "seq", "begin_ns", "crc", "peer"),
    "result": ("op", "group", "seq", "crc"),
    "error": ("op", "group", "seq", "error", "message"),
    "sleep": ("duration_ns",),
    "step": ("step",),
    "store": ("op", "key"),
    "output": ("stream", "size", "crc"),
    "fault": ("fault", "text", "life"),
    "deadlock": ("cycle", "text"),
}

_NUMBER = Maybe(Whole())
_TEXT = Maybe(Text())

# What each of these values is, in a file too; a name means the same in every kind.
VALUES: Mapping[str, Spec] = {
    "life": _NUMBER,
    "pid": _NUMBER,
    "host": _TEXT,
    "status": _TEXT,
    "exit_code": _NUMBER,
    "group": _TEXT,
    "ranks": ListOf(Whole(least=0), of="ranks"),
    "desc": _TEXT,
    "op": _TEXT,
    "seq": _NUMBER,
    "nbytes": _NUMBER,
    "dtype": _TEXT,
    "shape": ListOf(Whole(least=0), of="sizes"),
    "peer": _NUMBER,
    "async_op": Truth(),
    "tag": _NUMBER,
    "duration_ns": Duration(),
    "begin_ns": Maybe(Duration()),
    "crc": _NUMBER,
    "error": _TEXT,
    "message": _TEXT,
    "step": _NUMBER,
    "key": _TEXT,
    "stream": _TEXT,
    "size": _NUMBER,
    "fault": _TEXT,
    "text": _TEXT,
    "cycle": ListOf(Text(), of="names"),
    "end": OneOf(("complete", "error", "cut off")),  # in a Chrome trace
}


class EventStream(Sequence[Event]):
    """The records of a run as `Event`s, made when they are asked for."""

    __slots__ = ("_records",)

    def __init__(self, records: list[tuple[Any, ...]]) -> None:
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


def event_of(record: tuple[Any, ...]) -> Event:
    """A record of the kernel as an `Event`."""
    time_ns, kind, rank, *values = record
    names = FIELDS.get(kind, ())
    data = {
        name: list(value) if isinstance(value, tuple) else value for name, value in zip(names, values, strict=False)
    }
    return Event(time_ns, kind, rank, data)
