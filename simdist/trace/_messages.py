"""The ranks of each group, and the matching sends and receives."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simdist.c10d.calls import MESSAGES
from simdist.result import Event, Span

__all__ = ["Groups", "messages"]


class Groups:
    """The members of each group. A name may return with other members, after a restart or a second initialisation."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._known: dict[str, tuple[list[int], list[list[int]]]] = {}
        self.descriptions: dict[str, str] = {}
        for event in events:
            if event.kind == "group":
                data: Mapping[str, Any] = event.data
                name = str(data.get("group"))
                times, members = self._known.setdefault(name, ([], []))
                times.append(event.time_ns)
                members.append([int(rank) for rank in data.get("ranks", ())])
                self.descriptions[name] = str(data.get("desc", "undefined"))

    def names(self) -> list[str]:
        """Return every group, in the order in which they were made."""
        return list(self._known)

    def members(self, name: str, time_ns: int) -> list[int]:
        """Return the global ranks of the group at that time, in its own order; none if the trace does not have them."""
        times, members = self._known.get(name, ([], []))
        index = bisect_right(times, time_ns) - 1
        return members[index] if index >= 0 else []

    def peer(self, span: Span) -> int | None:
        """Return the global rank at the other end of a message, or of a collective's root; None if there is none."""
        peer = span.issue.data.get("peer", -1)
        if span.peer is not None:
            peer = span.peer
        if not isinstance(peer, int) or peer < 0:
            return None
        members = self.members(str(span.issue.data.get("group")), span.start_ns)
        return members[peer] if peer < len(members) else peer


def messages(spans: Sequence[Span], groups: Groups) -> list[tuple[int, int]]:
    """Return the send and the receive of every message that arrived, as indices into `spans`.

    On one channel (group, tag, sender, receiver) the n-th send meets the n-th receive.
    """
    sends: dict[tuple[Any, ...], list[int]] = {}
    receives: dict[tuple[Any, ...], list[int]] = {}
    for index, span in enumerate(spans):
        peer = groups.peer(span) if span.end == "complete" and span.name in MESSAGES else None
        if peer is not None:
            channel = str(span.issue.data.get("group")), str(span.issue.data.get("tag", 0))
            if span.name == "send":
                sends.setdefault((*channel, span.rank, peer), []).append(index)
            else:
                receives.setdefault((*channel, peer, span.rank), []).append(index)
    return sorted(pair for key in sends for pair in zip(sends[key], receives.get(key, []), strict=False))
