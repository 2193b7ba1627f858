"""Files that ranks use in no order.

A file counts as written when it is opened for writing, or renamed to its name. If a rank checks that a file exists and
then reads it, the read comes after the file was made: programs wait for files in this way. A file that was made by
opening it may still be half written then; a file that was renamed is complete. A lock on a file, by `fcntl` or by
exclusive creation, puts the ranks that take it in order.

These are no races: several ranks append to a file, make a folder, rename files to one name, or remove a file; and a
rank opens a file for writing that is empty, and that ranks have locked: it does so to lock it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.judges._events import FileUsed
from simdist.judges._judge import Hearing, Moment
from simdist.judges.races._order import News, Order

__all__ = ["FileRaces"]


@dataclass(slots=True)
class _Use:
    """A rank's use of a file, with its place and the count of the rank's clock."""

    verb: str
    moment: Moment
    count: int


@dataclass(slots=True)
class _File:
    """The state of one path."""

    written: _Use | None = None
    reads: dict[int, _Use] = field(default_factory=dict)  # since the last write, by rank
    shown: News | None = None  # clock of the rank that made it
    gone: News | None = None  # clock of the rank that removed it
    missed: set[int] = field(default_factory=set)  # ranks that have checked whether it exists: they wait for it
    holders: dict[int, None] = field(default_factory=dict)  # ranks that have had a lock on it


class FileRaces:
    """The files of one world."""

    def __init__(self, hearing: Hearing, order: Order) -> None:
        self._hearing = hearing
        self._order = order
        self._life = -1
        self._files: dict[str, _File] = {}
        self._reported: set[tuple[str, str]] = set()  # pairs of lines

    def on_use(self, event: FileUsed) -> None:
        """Check a rank's use of a file."""
        order = self._order
        rank = order.enter(event.process)
        if rank < 0:
            return
        if order.life != self._life:
            self._life = order.life
            self._files.clear()
        use, path = event.use, event.path
        if use == "rename":
            self._rename(event, rank)
            return
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = _File()
        if use == "missed":
            file.missed.add(rank)
        elif use == "seen":
            file.missed.add(rank)
            order.learn(rank, file.shown)
        elif use == "lock":
            for other in file.holders:
                order.learn(rank, order.publish(other))
            file.holders[rank] = None
        elif use == "read":
            if rank in file.missed:
                order.learn(rank, file.shown)
            mine = self._use(event, rank, "reads")
            self._look(event, mine, file.written)
            file.reads[rank] = mine
        elif use == "create":
            order.learn(rank, file.gone)
            file.written = self._use(event, rank, "makes")
            file.shown = order.publish(rank)
        elif use == "write" and event.to and (locked := self._files.get(event.to)) and locked.holders:
            return
        elif use in ("write", "append"):
            verb = "writes" if use == "write" else "appends to"
            self._change(event, self._use(event, rank, verb), file)
            if file.shown is None or use == "write":
                file.shown = order.publish(rank)
            file.written = self._use(event, rank, verb)  # this write is not visible to other ranks yet
        elif use == "remove":
            file.written = self._change(event, self._use(event, rank, "removes"), file)
            file.gone = order.publish(rank)
            file.shown = None

    def _rename(self, event: FileUsed, rank: int) -> None:
        """Rename a file, or a folder with its content."""
        below = event.path + "/"
        for path in [each for each in self._files if each == event.path or each.startswith(below)]:
            self._change(event, self._use(event, rank, "renames"), self._files.pop(path))
            if path != event.path:
                self._files[event.to + path[len(event.path) :]] = _File(self._use(event, rank, "puts"))
        target = self._files.setdefault(event.to, _File())
        target.written = self._change(event, self._use(event, rank, "puts"), target)
        news = self._order.publish(rank)
        for path, file in self._files.items():
            if path == event.to or path.startswith(event.to + "/"):
                file.shown = news

    def _use(self, event: FileUsed, rank: int, verb: str) -> _Use:
        return _Use(verb, self._hearing.moment(event.process, event.where), self._order.now(rank))

    def _change(self, event: FileUsed, mine: _Use, file: _File) -> _Use:
        """Check that no other rank reads or changes a file at the same time as this change."""
        if file.written is not None and (mine.verb, file.written.verb) not in _NO_RACES:
            self._look(event, mine, file.written)
        for read in file.reads.values():
            self._look(event, mine, read)
        file.reads.clear()
        return mine

    def _look(self, event: FileUsed, mine: _Use, other: _Use | None) -> None:
        """Report two uses without an order between them."""
        if other is None:
            return
        rank, before = mine.moment.rank, other.moment.rank
        if before == rank or self._order.knows(rank, before, other.count):
            return
        lines = mine.moment.where, other.moment.where
        if lines in self._reported or lines[::-1] in self._reported:
            return
        self._reported.add(lines)
        # Blame the rank that reads too early, even if it came first, or that takes a file away too early.
        blamed, against = mine, other
        if other.verb in ("removes", "renames") or (other.verb == "reads" and mine.verb not in ("removes", "renames")):
            blamed, against = other, mine
        self._hearing.find(
            f"{blamed.verb} file {event.name}, and rank {against.moment.rank} {against.verb} it: "
            "nothing puts the one before the other",
            blamed.moment,
            subject=event.name,
            against=against.moment.where,
            notes=["a barrier between them puts them in order"],
        )


# Pairs of changes that two ranks may make to one file in any order.
_NO_RACES = {
    ("puts", "puts"),
    ("appends to", "appends to"),
    ("removes", "removes"),
    ("writes", "removes"),
    *((verb, "makes") for verb in ("writes", "appends to", "removes", "renames", "puts")),
}
