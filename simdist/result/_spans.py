"""Makes spans of events: which operation ran on which rank from when to when, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simdist.result._outcome import Event

__all__ = ["Span", "spans_of"]

End = Literal["complete", "error", "cut off"]


@dataclass(frozen=True, slots=True)
class Span:
    """What a rank did from `start_ns` to `end_ns`: an operation, a sleep, or a delay by a fault.

    `begin_ns` is when an operation's data began to flow, None if they never did. "cut off": the rank or the run ended
    first. `issue` is the event that opened it, `message` an error's text, `peer` the group rank of a message's other
    end, as in its completion.
    """

    rank: int
    start_ns: int
    end_ns: int
    name: str
    issue: Event
    end: End = "complete"
    begin_ns: int | None = None
    message: str = ""
    peer: int | None = None

    @property
    def is_operation(self) -> bool:
        """True for an operation, False for a sleep or a delay."""
        return self.issue.kind == "issue"

    @property
    def is_async(self) -> bool:
        """True if the rank went on while the operation ran."""
        return bool(self.issue.data.get("async_op", False))


def spans_of(events: Iterable[Event], end_ns: int) -> list[Span]:
    """The spans of a run that ended at `end_ns`, by start, then in the order in which they were opened."""
    book = _Book()
    for event in events:
        book.read(event)
    book.close_all(end_ns)
    return [span for _, span in sorted(book.closed, key=lambda item: (item[1].start_ns, item[0]))]


_Key = tuple[str, str, str]


class _Book:
    """The open operations, by key and by rank; and the closed spans, each with its number in the order of opening."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, Span]] = []
        self._open: dict[_Key, dict[int, tuple[int, Event]]] = {}
        self._sleeping: dict[int, tuple[int, Event]] = {}
        self._opened = 0

    def read(self, event: Event) -> None:
        """Read the next event."""
        if event.kind == "issue":
            self._open.setdefault(_key(event.data), {})[event.rank] = (self._next(), event)
        elif event.kind in ("complete", "error"):
            self._finish(event)
        elif event.kind in ("sleep", "delay"):
            self._wake(event.rank, event.time_ns)
            self._sleeping[event.rank] = (self._next(), event)
        elif event.kind in ("exit", "start"):
            self._close_rank(event.rank, event.time_ns)
        elif event.kind == "restart":
            self.close_all(event.time_ns)

    def close_all(self, time_ns: int) -> None:
        """Cut off all that is open at `time_ns`."""
        ranks = {rank for members in self._open.values() for rank in members} | set(self._sleeping)
        for rank in sorted(ranks):
            self._close_rank(rank, time_ns)

    def _next(self) -> int:
        self._opened += 1
        return self._opened

    def _finish(self, event: Event) -> None:
        key = _key(event.data)
        members = self._open.get(key, {})
        ranks = sorted(members) if event.rank < 0 else [event.rank]
        for rank in ranks:
            if rank in members:
                number, issue = members.pop(rank)
                end: End = "complete" if event.kind == "complete" else "error"
                message = f"{event.data.get('error', '')}: {event.data.get('message', '')}" if end == "error" else ""
                data: Mapping[str, Any] = event.data
                begin = data.get("begin_ns") if end == "complete" else None
                self._close(number, issue, event.time_ns, end, begin, message, data.get("peer"))
        if not members:
            self._open.pop(key, None)

    def _close_rank(self, rank: int, time_ns: int) -> None:
        self._wake(rank, time_ns)
        for key in [key for key, members in self._open.items() if rank in members]:
            number, issue = self._open[key].pop(rank)
            self._close(number, issue, time_ns, "cut off", None, "")
            if not self._open[key]:
                del self._open[key]

    def _wake(self, rank: int, time_ns: int) -> None:
        if rank in self._sleeping:
            number, event = self._sleeping.pop(rank)
            data: Mapping[str, Any] = event.data
            wanted_ns = event.time_ns + int(data.get("duration_ns", 0))
            end: End = "complete" if wanted_ns <= time_ns else "cut off"
            self.closed.append((number, Span(rank, event.time_ns, min(wanted_ns, time_ns), event.kind, event, end)))

    def _close(
        self,
        number: int,
        issue: Event,
        end_ns: int,
        end: End,
        begin_ns: int | None,
        message: str,
        peer: int | None = None,
    ) -> None:
        name = str(issue.data.get("op", "operation"))
        if begin_ns is not None:  # for a late member of a rooted collective the data are there already
            begin_ns = min(max(begin_ns, issue.time_ns), end_ns)
        self.closed.append((number, Span(issue.rank, issue.time_ns, end_ns, name, issue, end, begin_ns, message, peer)))


def _key(data: Mapping[str, Any]) -> _Key:
    return str(data.get("group")), str(data.get("op")), str(data.get("seq"))
