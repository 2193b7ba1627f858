"""Keys of a store that ranks use in no order.

If two ranks read a key and both then write it, the first update is lost: the second rank had not seen it. The same
happens if a rank reads a key, another adds to it, and the first then writes it. A key may also be left from an earlier
life: a rank that reads it before a rank sets it again has read a value of the earlier world.

A `set` is reported when it is sent, and may arrive after the answer to a later `get`. So the value itself shows which
of the last values a rank has read.

In doubt: if two ranks write the same value, it counts as a flag, not as an update, unless it is a number. Among equal
values, a rank has read the newest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from simdist.c10d import StoreServed
from simdist.judges._judge import Hearing, Moment
from simdist.judges._sites import calling_site
from simdist.judges.races._order import Order

__all__ = ["StoreRaces"]


_MOST_VALUES = 64  # last values of a key that are kept


@dataclass(frozen=True, slots=True)
class _Written:
    """A value that was written to a key."""

    version: int
    life: int
    rank: int
    count: int  # of the rank, for `Order.knows`
    operation: str
    where: str
    value: bytes
    read: int  # the version on which it is based: the rank's last read since its last write; -1: none


@dataclass(slots=True)
class _Key:
    """The state of one key."""

    last: deque[_Written] = field(default_factory=lambda: deque(maxlen=_MOST_VALUES))
    version: int = 0
    reads: dict[int, int] = field(default_factory=dict)  # by rank: the version last read since its last write
    stale: dict[int, tuple[Moment, int]] = field(default_factory=dict)  # ranks that read a value of an earlier life

    def version_of(self, value: bytes) -> int:
        """Return the newest version with this value."""
        return next((each.version for each in reversed(self.last) if each.value == value), self.version)


class StoreRaces:
    """The keys of one world."""

    def __init__(self, hearing: Hearing, order: Order) -> None:
        self._hearing = hearing
        self._order = order
        self._life = -1
        self._keys: dict[tuple[object, str], _Key] = {}

    def on_use(self, event: StoreServed) -> None:
        """Check a rank's use of keys."""
        rank = self._order.enter(event.process)
        if rank < 0:
            return
        if self._order.life != self._life:
            self._life = self._order.life
            for each in self._keys.values():
                each.reads.clear()
                each.stale.clear()
        operation = event.operation
        if operation in ("get", "multi_get"):
            for name, value in zip(event.keys, event.values, strict=True):
                self._read(event, self._key(event, name), rank, value)
        elif operation == "delete_key":
            for name in event.keys:
                self._keys.pop((event.server, name), None)
        elif operation in ("set", "add", "compare_set"):
            self._write(event, self._key(event, event.keys[0]), rank)

    def _key(self, event: StoreServed, name: str) -> _Key:
        return self._keys.setdefault((event.server, name), _Key())

    def _read(self, event: StoreServed, key: _Key, rank: int, value: bytes) -> None:
        key.reads[rank] = key.version_of(value)
        if key.last and key.last[-1].life < self._life:
            moment = self._hearing.moment(event.process, calling_site())
            key.stale.setdefault(rank, (moment, self._order.now(rank)))

    def _write(self, event: StoreServed, key: _Key, rank: int) -> None:
        where, value = calling_site(), event.values[0]
        if event.operation == "set":
            read = key.reads.pop(rank, -1)
            lost = self._lost(key, rank, read, value)
            if lost is not None:
                self._hearing.find(
                    f"key {_name(event.keys[0])} loses an update: {_how(lost, rank)}",
                    self._hearing.moment(event.process, where),
                    subject=_name(event.keys[0]),
                    against=lost.where,
                    notes=["`add` and `compare_set` are one step of the store"],
                )
        elif key.last and value == key.last[-1].value:
            return  # the request changed nothing
        else:
            read = key.version or -1
        for reader, (moment, count) in key.stale.items():
            if reader != rank and not self._order.knows(rank, reader, count):
                self._hearing.find(
                    f"key {_name(event.keys[0])} is read as an earlier life left it: rank {rank} sets it anew, "
                    "and nothing puts that before the other",
                    moment,
                    subject=_name(event.keys[0]),
                    against=where,
                    notes=["a prefix that holds the number of the life keeps them apart"],
                )
        key.stale.clear()
        key.version += 1
        count = self._order.now(rank) - 1  # `Order` has already counted this request
        key.last.append(_Written(key.version, self._life, rank, count, event.operation, where, value, read))

    def _lost(self, key: _Key, rank: int, read: int, value: bytes) -> _Written | None:
        """Return the first update by another rank that `rank`, which had read version `read`, undoes; or None."""
        for each in key.last if read >= 0 else ():
            if each.version <= read or each.read < 0 or each.rank == rank or each.life != self._life:
                continue
            if each.value == value and not _is_number(value):
                continue
            if each.read == read or not self._order.knows(rank, each.rank, each.count):
                return each
        return None


def _how(lost: _Written, rank: int) -> str:
    if lost.operation == "set":
        return f"ranks {lost.rank} and {rank} both read it, and write it back"
    return f"rank {rank} read it, rank {lost.rank} added to it, and rank {rank} writes back what it had read"


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _name(key: str) -> str:
    return repr(key.rpartition("/")[2] or key)
