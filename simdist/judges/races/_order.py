"""The happened-before order over all ranks of a world: a vector clock for each rank.

A rank's clock has a count for every rank: how much of that rank's program is certainly over. A rank takes over another
rank's clock where its program can't go on without that rank: a collective with data from it, a message, a key of a
store that it waits for or reads, a counter, the making of a group, at which all members meet, and a monitored barrier.
The module for files adds their order (`publish`, `learn`).

Invariants:
- A rank's own count rises each time that others may learn from it, so that only later news include `now`.
- Clocks belong to one life: everything in an earlier life is over when the next life begins.

Doubts that give too much order, which can hide a race but never invents one: the threads of a rank and its child
processes count as one; a request to a store counts as served when it is sent; a rank that waits for a work on a device
counts as if its host had waited; in a group on devices, a receive counts as after all earlier sends of the members.
Doubts that give too little order: a rank learns nothing from `is_completed` alone, or through a socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from simdist.c10d import MembersAwaited, MembersMet, StoreServed, WorkIssued, WorkWaited
from simdist.c10d.calls import FROM_ROOT, TO_ROOT
from simdist.c10d.engine import P2PWork
from simdist.judges._judge import Hearing
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.engine import Communicator

__all__ = ["News", "Order", "rank_of"]

News: TypeAlias = npt.NDArray[np.int64]  # a clock: the count of every rank

_ASKS = ("get", "wait", "check", "multi_get", "queue_pop", "add", "compare_set")
_SETS = ("set", "append", "queue_push", "add", "compare_set")


def rank_of(process: SimProcess) -> int:
    """Return the rank of a process or of its parent; -1 for a launcher."""
    while process.parent is not None:
        process = process.parent
    return process.rank


@dataclass(slots=True)
class _Meeting:
    """One collective of one group, or another point at which its members wait for each other."""

    root: int = -1  # world rank of the root; -1: all ranks learn from all
    to_root: bool = False
    news: dict[int, News] = field(default_factory=dict)  # by rank
    all_news: News | None = None  # the clocks of all arrived members together
    left: int = 0  # how many members have left

    def arrive(self, rank: int, news: News) -> None:
        """Add the clock of a member that arrives."""
        self.news[rank] = news
        if self.all_news is None:
            self.all_news = news.copy()
        else:
            np.maximum(self.all_news, news, out=self.all_news)


class Order:
    """The clocks of one world."""

    def __init__(self, hearing: Hearing) -> None:
        self._size = hearing.world_size
        self.life = -1
        self._clocks: list[News] = []
        self._meetings: dict[tuple[Communicator, int], _Meeting] = {}
        self._sent: dict[object, News] = {}  # by send
        self._on_devices: dict[Communicator, News] = {}  # by group: the clocks of its members at their last messages
        self._keys: dict[tuple[object, str], News] = {}
        hearing.listen(WorkIssued, self._on_issue)
        hearing.listen(WorkWaited, self._on_wait)
        hearing.listen(MembersAwaited, self._on_arrival)
        hearing.listen(MembersMet, self._on_meeting)
        hearing.listen(StoreServed, self._on_store)

    def enter(self, process: SimProcess) -> int:
        """Return the rank of a process, and begin a new life with it; -1 for an earlier life or a launcher."""
        life = process.life
        if life != self.life:
            if life < self.life:
                return -1
            self.life = life
            self._clocks = [np.zeros(self._size, np.int64) for _ in range(self._size)]
            for rank, clock in enumerate(self._clocks):
                clock[rank] = 1
            self._meetings.clear()
            self._sent.clear()
            self._on_devices.clear()
            self._keys.clear()
        return process.rank if process.parent is None else rank_of(process)

    def now(self, rank: int) -> int:
        """Return the count of a rank: a rank that learns from it later knows its current action."""
        return int(self._clocks[rank][rank])

    def knows(self, rank: int, other: int, count: int) -> bool:
        """True if the action of `other` at its `count` is over before the current action of `rank`."""
        return bool(self._clocks[rank][other] >= count)

    def publish(self, rank: int) -> News:
        """Return a rank's clock, for others to learn."""
        clock = self._clocks[rank]
        news = clock.copy()
        clock[rank] += 1
        return news

    def learn(self, rank: int, news: News | None) -> None:
        """Merge a published clock into a rank's clock."""
        if news is not None:
            np.maximum(self._clocks[rank], news, out=self._clocks[rank])

    # -- operations ----------------------------------------------------------------------------------------------

    def _on_issue(self, event: WorkIssued) -> None:
        work = event.work
        process = work.process
        rank = process.rank if process.life == self.life and process.parent is None else self.enter(process)  # hot
        name = work.name
        if rank < 0 or name == "recv":
            return
        if isinstance(work, P2PWork):
            self._sent[work] = self.publish(rank)
            return
        group = work.member.communicator
        if name in ("send", "coalesced"):
            news = self.publish(rank)
            self._on_devices[group] = np.maximum(news, self._on_devices.get(group, news))
            return
        meeting = self._meetings.get((group, work.sequence))
        if meeting is None:
            meeting = self._meetings[group, work.sequence] = _Meeting(to_root=name in TO_ROOT)
            if event.root >= 0 and name in (*FROM_ROOT, *TO_ROOT):
                meeting.root = _world_rank(group, event.root)
        meeting.arrive(rank, self.publish(rank))

    def _on_wait(self, event: WorkWaited) -> None:
        work = event.work
        process = work.process
        rank = process.rank if process.life == self.life and process.parent is None else self.enter(process)  # hot
        if rank < 0 or work.error is not None:
            return
        if isinstance(work, P2PWork):
            if work.sender is not None:
                self.learn(rank, self._sent.pop(work.sender, None))
        else:
            group = work.member.communicator
            if self._on_devices:
                self.learn(rank, self._on_devices.get(group))
            self._go_on(rank, group, work.sequence)

    def _go_on(self, rank: int, group: Communicator, number: int) -> None:
        meeting = self._meetings.get((group, number))
        if meeting is None or rank not in meeting.news:
            return
        if meeting.root < 0 or (meeting.to_root and rank == meeting.root):
            self.learn(rank, meeting.all_news)
        elif not meeting.to_root:
            self.learn(rank, meeting.news.get(meeting.root))
        meeting.left += 1
        if meeting.left == group.size:
            del self._meetings[group, number]

    def _on_arrival(self, event: MembersAwaited) -> None:
        rank = self.enter(event.process)
        if rank >= 0:
            meeting = self._meetings.setdefault((event.communicator, -2 - event.number), _Meeting())
            meeting.arrive(rank, self.publish(rank))

    def _on_meeting(self, event: MembersMet) -> None:
        rank = self.enter(event.process)
        if rank >= 0:
            self._go_on(rank, event.communicator, -2 - event.number)

    # -- stores --------------------------------------------------------------------------------------------------

    def _on_store(self, event: StoreServed) -> None:
        rank = self.enter(event.process)
        if rank < 0:
            return
        for key in event.keys:
            place = event.server, key
            if event.operation in _ASKS:
                self.learn(rank, self._keys.get(place))
            if event.operation in _SETS:
                news = self.publish(rank)
                self._keys[place] = np.maximum(news, self._keys.get(place, news))


def _world_rank(group: Communicator, root: int) -> int:
    member = group.members[root]
    return -1 if member is None else int(member.process.rank)
