"""Keys of a store that ranks use in no order.

A key that two ranks read, and that both then write, has lost what the first of them wrote: each had what the other had
not seen. And a key that stands there from an earlier life is no news: a rank that reads it before somebody sets it
anew has read what the world before wrote.

In doubt: a value that two ranks write alike is a sign and no update, unless it is a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from simdist.c10d import StoreServed
from simdist.judges._judge import Hearing, Moment
from simdist.judges._order import Order
from simdist.judges._sites import calling_site

__all__ = ["StoreRaces"]


@dataclass(slots=True)
class _Written:
    """The last update of a key."""

    version: int
    life: int
    rank: int
    where: str
    value: bytes
    read: int  # the version that the rank had read before, and not written since; -1: none


@dataclass(slots=True)
class _Key:
    """One key."""

    last: _Written | None = None
    version: int = 0
    reads: dict[int, int] = field(default_factory=dict)  # by rank: the version that it has read, and not written since
    stale: dict[int, tuple[Moment, int]] = field(default_factory=dict)  # who read it as an earlier life left it


class StoreRaces:
    """The keys of one world."""

    def __init__(self, hearing: Hearing, order: Order) -> None:
        self._hearing = hearing
        self._order = order
        self._life = -1
        self._keys: dict[tuple[Any, str], _Key] = {}

    def on_use(self, event: StoreServed) -> None:
        """A rank uses keys."""
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
            for name in event.keys:
                self._read(event, self._key(event, name), rank)
        elif operation == "delete_key":
            for name in event.keys:
                self._keys.pop((event.server, name), None)
        elif operation in ("set", "add", "compare_set"):
            self._write(event, self._key(event, event.keys[0]), rank)

    def _key(self, event: StoreServed, name: str) -> _Key:
        return self._keys.setdefault((event.server, name), _Key())

    def _read(self, event: StoreServed, key: _Key, rank: int) -> None:
        key.reads[rank] = key.version
        if key.last is not None and key.last.life < self._life:
            moment = self._hearing.moment(event.process, calling_site())
            key.stale.setdefault(rank, (moment, self._order.now(rank)))

    def _write(self, event: StoreServed, key: _Key, rank: int) -> None:
        read = key.reads.pop(rank, -1) if event.operation == "set" else -1
        where, value = calling_site(), event.values[0]
        last = key.last
        if last is not None and last.life == self._life and last.rank != rank and 0 <= read < key.version:
            alike = last.value == value and not _is_number(value)
            if last.read == read and not alike:
                self._hearing.find(
                    f"key {_name(event.keys[0])} loses an update: rank {last.rank} and this rank both read it, "
                    "and write it back",
                    self._hearing.moment(event.process, where),
                    subject=_name(event.keys[0]),
                    against=last.where,
                    notes=["`add` and `compare_set` are one step of the store"],
                )
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
        key.last = _Written(key.version, self._life, rank, where, value, read)


def _is_number(value: bytes) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _name(key: str) -> str:
    return repr(key.rpartition("/")[2] or key)
