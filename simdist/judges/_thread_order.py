"""Groups that several threads of a rank use in no order.

The members of a group match its collectives by their order. If two threads of a rank call collectives on one group, and
neither waits for the other, their order depends on the schedule, and may differ from that of the other ranks. A vector
clock for each thread defines the order: a thread begins after its parent's earlier actions, and goes on after the
actions of the threads that released the lock, put the item or ended the thread that it waits for.

Doubts: two threads that take turns with a lock count as in order, although the lock does not say which goes first. This
may hide a race, but never invents one. The same holds for a thread that reads from any socket after another has written
to one. A thread that polls a plain variable learns nothing from it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from simdist.judges._judge import Hearing, Moment
from simdist.kernel import Task
from simdist.process import HandedOver, ThreadBegan

if TYPE_CHECKING:
    from simdist.c10d import SimWork

__all__ = ["ThreadOrder"]

_News = dict[Task, int]  # a clock: the count of each thread


@dataclass(slots=True)
class _Use:
    """A thread's last collective in a group."""

    count: int
    what: str
    moment: Moment


class ThreadOrder:
    """Watches one world; `on_call` must be called for each collective."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._clocks: dict[Task, _News] = {}  # of threads that were started, and of threads that started some
        self._given: WeakKeyDictionary[object, _News] = WeakKeyDictionary()  # by lock
        self._given_by_lasting: dict[object, _News] = {}  # likewise, by objects without weak references
        self._uses: dict[object, dict[Task, _Use]] = {}  # by member and thread
        self._found = False
        hearing.listen(ThreadBegan, self._on_thread)
        hearing.listen(HandedOver, self._on_hand_over)

    def on_call(self, work: SimWork, moment: Moment) -> None:
        """Check a collective that a thread of a rank issues."""
        task = work.process.simulation.current
        if self._found or task is None:
            return
        clock = self._clocks.get(task)
        uses = self._uses.get(work.member)
        if clock is None and uses is None:
            return  # hot: the rank has one thread
        if uses is None:
            uses = self._uses[work.member] = {}
        for other, use in uses.items():
            if other is not task and (clock is None or clock.get(other, 0) < use.count):
                self._found = True
                self._hearing.find(
                    f"{work.describe()} is called by {task.name}, {use.what} by {other.name}, and neither waits for "
                    "the other",
                    moment,
                    subject=work.member.communicator.name,
                    against=use.moment.where,
                    notes=["the order of the two depends on the schedule, and need not be that of the other ranks"],
                )
                return
        clock = self._clock_of(task)
        uses[task] = _Use(clock[task], work.describe(), moment)

    def _clock_of(self, task: Task) -> _News:
        clock = self._clocks.get(task)
        if clock is None:
            clock = self._clocks[task] = {task: 1}
        return clock

    def _on_thread(self, event: ThreadBegan) -> None:
        parent = self._clock_of(event.parent)
        self._clocks[event.task] = {**parent, event.task: 1}
        parent[event.parent] += 1

    def _on_hand_over(self, event: HandedOver) -> None:
        clock = self._clocks.get(event.task)
        if clock is None:
            return  # hot: the rank has one thread
        given: MutableMapping[object, _News] = self._given
        try:
            known = given.get(event.thing)
        except TypeError:  # a lock of `multiprocessing`; the world keeps these anyway
            given = self._given_by_lasting
            known = given.get(event.thing)
        if event.gives:
            given[event.thing] = clock.copy() if known is None else _later(known, clock)
            clock[event.task] += 1
        elif known is not None:
            clock.update(_later(known, clock))


def _later(one: _News, other: _News) -> _News:
    return {task: max(one.get(task, 0), other.get(task, 0)) for task in {**one, **other}}
