"""The changes of a disk's names and sizes, in order, and how much of them has to outlive the host."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simdist.storage._inode import Draw
from simdist.storage._profile import Profile

__all__ = ["Entry", "Log", "Names", "Place"]

Place = tuple[int, str]
"""A folder's number, and a name in it."""

Names = dict[Place, int]
"""The number of the file, folder or link at each place."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change: what is at some places from then on, None for nothing. Without places: a change of size.

    `about` are the inodes that are named or replaced; `resizes` is true if a sync of data alone needs the entry.
    """

    number: int
    sets: tuple[tuple[Place, int | None], ...]
    about: tuple[int, ...]
    resizes: bool = False

    @property
    def replaces(self) -> bool:
        """True if it takes the place of another inode."""
        return len(self.about) > 1

    def touches(self, inode: int) -> bool:
        """True if it concerns this file, or the content of this folder."""
        return inode in self.about or any(place[0] == inode for place, _ in self.sets)


class Log:
    """Durable names, and entries that may not be durable. Those in `kept` are in any case.

    Example:
        >>> from simdist.storage import PROFILES
        >>> log = Log(PROFILES["ext4"], {})
        >>> number = log.add([((0, "a"), 1)], about=[1])
        >>> list(log.choices())
        [(0,), ()]
        >>> log.keep_about(1)
        >>> log.durable
        {(0, 'a'): 1}
    """

    def __init__(self, profile: Profile, durable: Names) -> None:
        self._profile = profile
        self.durable = durable
        self.entries: list[Entry] = []
        self.kept: set[int] = set()
        self._count = 0
        self._synced = False  # "apart": there was a sync, so that there is a log

    def add(self, sets: Iterable[tuple[Place, int | None]], *, about: Iterable[int] = (), resizes: bool = False) -> int:
        """Add a change of names, or of a file's size; returns its number."""
        sets, about = tuple(sets), tuple(about)
        parts: list[tuple[tuple[Place, int | None], ...]] = [sets]
        if self._profile.names == "any" and len({place[0] for place, _ in sets}) > 1:
            parts = [(each,) for each in sets]  # two folders, each may be lost alone
        for part in parts:
            self.entries.append(Entry(self._count, part, about, resizes))
            self._count += 1
        if self._profile.names == "at once":
            self.keep_all()
        return self._count - 1

    def keep_all(self) -> None:
        """Make all entries so far durable."""
        self.kept.update(number for entry in self.entries for number in (entry.number, ~entry.number))
        self._synced = False
        self._fold()

    def keep_about(self, inode: int, *, data_only: bool = False) -> None:
        """Make the entries of a synced file or folder durable, with all that the profile adds to them."""
        about = [e for e in self.entries if e.touches(inode) and (e.resizes or not data_only)]
        rule = self._profile.names
        if rule == "any":
            self.kept.update(e.number for e in self.entries if any(place[0] == inode for place, _ in e.sets))
        elif rule == "in order" and about:
            self.kept.update(e.number for e in self.entries if e.number <= about[-1].number)
        elif rule == "apart":
            about = [e for e in self.entries if e.touches(inode) and (e.resizes or e.sets or not data_only)]
            self.kept.update(e.number for e in about)
            self.kept.update(~e.number for e in about if any(place[0] == inode for place, _ in e.sets))
            self._keep_ways(inode)
            self._synced = True
        self._fold()

    def _keep_ways(self, inode: int) -> None:
        """Make the folders that lead there durable, too."""
        seen = {inode}
        waiting = [inode]
        while waiting:
            child = waiting.pop()
            for entry in self.entries:
                folders = [place[0] for place, value in entry.sets if value == child]
                if folders:
                    self.kept.add(entry.number)
                waiting += [folder for folder in folders if folder not in seen]
                seen.update(folders)
            above = [place[0] for place, value in self.durable.items() if value == child and place[0] not in seen]
            waiting += above
            seen.update(above)

    def _fold(self) -> None:
        """Drop entries that are durable and have no others before them, after applying them."""
        count = 0
        for entry in self.entries:
            if not self.kept.issuperset(self._parts(entry)):
                break
            _apply(self.durable, entry)
            self.kept -= {entry.number, ~entry.number}
            count += 1
        del self.entries[:count]

    def with_entries(self, chosen: Iterable[int]) -> Names:
        """The names, if only these of the entries that may be lost are there."""
        there = self.kept.union(chosen)
        names = dict(self.durable)
        if self._profile.names == "apart":
            return self._claimed(there)
        for entry in self.entries:
            if entry.number in there:
                _apply(names, entry)
        return names

    def _claimed(self, there: set[int]) -> Names:
        """The names under "apart": the last inode to claim a place has it, unless it has lost it again."""
        claims = {place: [inode] for place, inode in self.durable.items()}
        unborn = {e.about[0] for e in self.entries if e.sets and e.resizes and e.number not in there}
        for entry in self.entries:
            mine, *replaced = entry.about
            for place, inode in entry.sets:
                at = claims.setdefault(place, [])
                if entry.number in there:
                    at[:] = [each for each in at if each != mine]
                    if inode is not None:
                        at.append(inode)
                if inode is not None and ~entry.number in there and (entry.number in there or mine in unborn):
                    at[:] = [each for each in at if each not in replaced]
        return {place: inodes[-1] for place, inodes in claims.items() if inodes}

    def _parts(self, entry: Entry) -> tuple[int, ...]:
        """The parts of an entry that may be lost separately: itself, and (`~`) that the replaced one lost its name."""
        apart = self._profile.names == "apart" and entry.replaces
        return (entry.number, ~entry.number) if apart else (entry.number,)

    @property
    def open(self) -> list[int]:
        """The entries, and parts of them, that may be lost."""
        return [number for entry in self.entries for number in self._parts(entry) if number not in self.kept]

    def choices(self) -> Iterator[tuple[int, ...]]:
        """Which of the entries that may be lost a crash may leave: all, none, then the selections between."""
        numbers = self.open
        yield tuple(numbers)
        if not numbers:
            return
        yield ()
        if self._profile.names != "any":
            for count in range(len(numbers) - 1, 0, -1):
                yield tuple(numbers[:count])
            for count in range(len(numbers) if self._synced else 0):
                named = self._named_after(numbers[:count])
                for many in range(1, len(named) + 1):
                    for logged in itertools.combinations(named, many):
                        yield (*numbers[:count], *logged)
            return
        for count in range(1, len(numbers)):  # one that is lost, then two
            for lost in itertools.combinations(numbers, count):
                yield tuple(number for number in numbers if number not in lost)

    def drawn(self, draw: Draw) -> tuple[int, ...]:
        """One of the choices."""
        numbers = self.open
        if self._profile.names != "any":
            chosen = numbers[: draw(len(numbers) + 1)]
            named = self._named_after(chosen) if self._synced and draw(2) else []
            return (*chosen, *(number for number in named if draw(2)))
        way = draw(3)
        return tuple(number for number in numbers if way == 0 or (way == 1 and draw(2)))

    def _named_after(self, chosen: list[int]) -> list[int]:
        """The entries of names that the log of file names may have in addition to `chosen`, each alone."""
        names = {number for entry in self.entries if entry.sets for number in self._parts(entry)}
        return [number for number in self.open[len(chosen) :] if number in names]


def _apply(names: Names, entry: Entry) -> None:
    for place, inode in entry.sets:
        if inode is None:
            names.pop(place, None)
        else:
            names[place] = inode
