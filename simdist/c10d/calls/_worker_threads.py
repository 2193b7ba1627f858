"""The threads on which one member of a group runs its collectives; a collective that finds none free waits its turn.

ProcessGroupGloo (torch 2.13) has two for each group, unless its options say otherwise: `runLoop` takes works from a
queue in the order of the calls. So of many collectives that a rank calls at once, the last one begins when at most one
other is unfinished, and code that waits for it alone finds all but that done. A work's timeout counts from its turn.

Messages need no thread. A barrier has one while it waits for the works before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from simdist.c10d.calls._table import MESSAGES

__all__ = ["WorkerThreads"]


class _Work(Protocol):
    """A work, as far as it matters here."""

    after: list[Callable[[], None]] | None
    blockers: Any

    @property
    def name(self) -> str: ...


_W = TypeVar("_W", bound=_Work)


class WorkerThreads(Generic[_W]):
    """The works of one member that wait for one of its `count` threads, and the rule by which they get one.

    `pending` has all of its works that are not settled, in the order of the calls; `has_left` is true once the member
    has left the group, after which no other work begins. While none waits, works begin without a call of `run`.
    """

    def __init__(self, pending: Mapping[_W, None], count: int, has_left: Callable[[], bool]) -> None:
        self._pending = pending
        self._count = count
        self._has_left = has_left
        self._waiting: dict[_W, Callable[[], None]] = {}  # with the function that begins it
        self._at_work: dict[_W, None] = {}  # those that have a thread, while others wait
        self._goes_on = False

    def run(self, work: _W, begin: Callable[[], None]) -> None:
        """Begin a pending work when a thread is free, and all before it have begun."""
        if not self._waiting:
            for each in self._pending:
                if each is not work and each not in self._at_work and each.name not in MESSAGES:
                    self._give_thread(each)
        self._waiting[work] = begin
        work.blockers = self
        self._go_on()

    def blockers_of(self, rank: int) -> Iterable[int]:
        """The group ranks that hold up the works that have the threads."""
        held: dict[int, None] = {}
        for work in self._at_work:
            if work.blockers is not None:
                held.update(dict.fromkeys(work.blockers.blockers_of(rank)))
        return held

    def _give_thread(self, work: _W) -> None:
        self._at_work[work] = None
        work.after = [*(work.after or ()), functools.partial(self._end, work)]

    def _end(self, work: _W) -> None:
        del self._at_work[work]
        self._go_on()

    def _go_on(self) -> None:
        if self._goes_on:  # a work that has just begun has ended: the call below goes on
            return
        self._goes_on = True
        try:
            while self._waiting and not self._has_left() and len(self._at_work) < self._count:
                work = next(iter(self._waiting))
                begin = self._waiting.pop(work)
                work.blockers = None
                self._give_thread(work)
                begin()
        finally:
            self._goes_on = False
