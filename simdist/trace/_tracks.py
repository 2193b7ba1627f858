"""The layout of a Chrome trace: a process for each host, a track for each rank, lanes for overlapping operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.result import Event, Span

__all__ = ["Track", "Tracks"]

_WORLD = 0  # the process for events of no rank; hosts count from 1


@dataclass(frozen=True, slots=True)
class Track:
    """One line of the picture: lane 0 is the rank's own, lanes 1 and up hold its overlapping operations."""

    process: int
    rank: int
    lane: int
    number: int

    def ids(self) -> dict[str, int]:
        """Return the record keys that put a record here."""
        return {"pid": self.process, "tid": self.number}


class Tracks:
    """The tracks of a run."""

    def __init__(self, events: Sequence[Event], spans: Sequence[Span]) -> None:
        hosts: dict[int, str] = {}
        for event in events:
            if event.kind == "start" and event.rank >= 0:
                hosts[event.rank] = str(event.data.get("host", 0))
        ranks = sorted({event.rank for event in events if event.rank >= 0})
        names = dict.fromkeys(hosts.get(rank, "0") for rank in ranks)
        self._hosts = {name: number for number, name in enumerate(names, start=1)}
        self._process_of = {rank: self._hosts[hosts.get(rank, "0")] for rank in ranks}
        lanes = _lanes(spans)
        places = sorted({(rank, 0) for rank in ranks} | set(lanes))
        self._tracks = {
            place: Track(self._process_of[place[0]], *place, number) for number, place in enumerate(places, start=1)
        }
        self._of_span = [self._tracks[place] for place in lanes]
        self._world = Track(_WORLD, -1, 0, 0)
        self._has_world = any(event.rank < 0 for event in events)

    def of_span(self, index: int) -> Track:
        """Return the track of the `index`-th span."""
        return self._of_span[index]

    def of_rank(self, rank: int) -> Track:
        """Return the rank's own track; the world's for -1."""
        return self._world if rank < 0 else self._tracks[rank, 0]

    def metadata(self) -> Iterator[dict[str, Any]]:
        """Yield the records that name and order processes and tracks."""
        if self._has_world:
            yield from _named("process", "world", {"pid": _WORLD})
            yield from _named("thread", "world", self._world.ids())
        for host, process in self._hosts.items():
            yield from _named("process", host if not host.isdecimal() else f"host {host}", {"pid": process})
        for track in self._tracks.values():
            name = f"rank {track.rank}" + (f" async {track.lane}" if track.lane else "")
            yield from _named("thread", name, track.ids())


def _lanes(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return for each span, in order of start, its rank and the lowest free lane; async ones never take lane 0."""
    busy_until: dict[int, list[int]] = {}
    places = []
    for span in spans:
        lanes = busy_until.setdefault(span.rank, [0])
        first = 1 if span.is_async else 0
        lane = next((n for n in range(first, len(lanes)) if lanes[n] <= span.start_ns), len(lanes))
        lanes[lane:] = [span.end_ns, *lanes[lane + 1 :]]
        places.append((span.rank, lane))
    return places


def _named(what: str, name: str, ids: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield {"name": f"{what}_name", "ph": "M", **ids, "args": {"name": name}}
    order = ids["tid"] if what == "thread" else ids["pid"]
    yield {"name": f"{what}_sort_index", "ph": "M", **ids, "args": {"sort_index": order}}
