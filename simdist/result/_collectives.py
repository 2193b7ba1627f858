"""Which collectives ranks did not call alike: with arguments that do not fit, or not on all ranks.

A rank's calls are distinguished by group, by how often the group of that name was made anew, and by sequence number: a
number that does not grow is the first sign that a program has made its group again. Only a rank's last life counts.

Doubt: an additional call in the middle of a program, with the same arguments as the others' next call, shows only at
the end, where the others have one call less. The events do not show where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simdist.c10d.calls import ALIKE
from simdist.result._outcome import Event
from simdist.values import rank_text

__all__ = ["uneven_collectives"]

_SHOWN = 3  # differing calls in a line
_Group = dict[int, dict[str, list[int]]]  # what its ranks called: by number, then by call, the ranks


class _Calls:
    """The collectives of a run's last life."""

    def __init__(self) -> None:
        self.groups: dict[tuple[str, int], _Group] = {}  # by name, and how often that name was made before
        self._members: dict[str, list[tuple[int, ...]]] = {}  # by name, each time that it was made
        self._last: dict[tuple[str, int], tuple[int, int]] = {}  # by group and rank: which of that name, last number

    def read(self, event: Event) -> None:
        """Read the next event of that life."""
        if event.kind == "group":
            data: Mapping[str, Any] = event.data
            self._members.setdefault(str(data["group"]), []).append(tuple(data["ranks"]))
        elif event.kind == "issue" and event.data["op"] not in ("send", "recv"):
            self._take(event.rank, event.data)

    def members(self, name: str, made: int) -> tuple[int, ...]:
        """The ranks of a group; none if it was never made."""
        known = self._members.get(name, [])
        return known[made] if made < len(known) else ()

    def _take(self, rank: int, data: Any) -> None:
        name, number = str(data["group"]), int(data["seq"])
        made, before = self._last.get((name, rank), (0, -1))
        if number <= before:
            made += 1
        self._last[name, rank] = made, number
        what = f" of {data['dtype']}{list(data['shape'])}" if data["nbytes"] else ""
        calls = self.groups.setdefault((name, made), {}).setdefault(number, {})
        calls.setdefault(f"{data['op']}{what}", []).append(rank)


def uneven_collectives(events: Sequence[Event], *, strict: bool) -> list[str]:
    """A line for the first collective that ranks called differently, and one for the first that some never called."""
    calls = _Calls()
    for event in events:
        if event.kind == "restart":
            calls = _Calls()
        calls.read(event)
    different: list[str] = []
    missing: list[str] = []
    for (name, made), group in calls.groups.items():
        members = calls.members(name, made)
        for number, by_call in sorted(group.items()):
            different = different or _different(name, number, by_call, strict=strict)
            missing = missing or _missing(name, number, group, members)
    return different + missing


def _different(name: str, number: int, by_call: dict[str, list[int]], *, strict: bool) -> list[str]:
    operations = {call.partition(" ")[0] for call in by_call}
    if len(by_call) < 2 or (len(operations) == 1 and not operations <= set(ALIKE)):
        return []
    reported = "; ".join(f"{rank_text(ranks)} {call}" for call, ranks in list(by_call.items())[:_SHOWN])
    hint = [] if strict else ["    (the backend does not check that; strict=True makes it an error at the call)"]
    return [f"ranks disagree on collective #{number} of group {name!r}: {reported}", *hint]


def _missing(name: str, number: int, group: _Group, members: Sequence[int]) -> list[str]:
    called = {rank for ranks in group[number].values() for rank in ranks}
    absent = [rank for rank in members if rank not in called]
    if not absent:
        return []
    only = "only " if len(called) < len(absent) else ""
    what = f"collective #{number} of group {name!r}, {next(iter(group[number]))}"
    return [f"{only}{rank_text(called)} called {what}; {rank_text(absent)} never did"]
