"""The findings of a `Flow`, recalled from the last time.

A training loop calls the same operations repeatedly, and the findings of a flow differ only in the moments. In a group
that nothing disturbs each moment of a flow is the latest of some sums: the arrival of a rank, plus a duration. Which
sums these are depends on the programs and on the order of the arrivals. So an operation keeps the findings of each
arrival in a tree, whose branches are the ranks that may arrive next, with moments as such sums. A collective whose
ranks arrive in a known order works out no message; where it leaves the tree, one flow finds the sums of all later
arrivals.

Invariants:
- Nothing is closed, limited, slowed by others or disturbed, and all ranks called the same. As soon as that no longer
  holds, `Followed` makes a flow of these arrivals (`work_out`) and goes on with that.
- Everything is found in the order in which a flow finds it, which decides the order of timers.
- A flow only takes the later of two moments and adds constants; it compares nothing. The flow that finds the sums uses
  arrays: an element for each rank, the sum that begins with its arrival.

What was tried: keeping moments as distances from the first arrival. In a loop of broadcasts they change with every
round, as the root gets ahead of its children by a few nanoseconds each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simdist.c10d.engine._flow import Blocked, Done, Failed, Flow
from simdist.c10d.engine._movement import Moved, Movement, Notes

__all__ = ["Past", "Recalled"]

_MOST = 50_000  # sums and messages that an operation remembers: some megabytes
_NEVER = -(1 << 60)  # in a sum: the moment does not depend on that rank's arrival
_IS_SUM = _NEVER >> 1

# A moment: the latest of these, each a rank and a duration after its arrival.
_Moment = tuple[tuple[int, int], ...]


class _Found:
    """The findings of one more arrival."""

    __slots__ = ("after", "blocked", "done", "moved", "until")

    def __init__(self) -> None:
        self.done: list[tuple[int, _Moment]] = []  # ranks whose part is over, and when
        self.blocked: list[tuple[int, str, int, _Moment]] = []  # ranks that got stuck: in what, on whom, since when
        self.until: _Moment = ()  # when the last bytes known so far have left
        self.moved: list[Moved] = []  # which send met which receive
        self.after: dict[int, _Found] = {}  # by the next rank to arrive

    @property
    def size(self) -> int:
        """The number of sums and messages in it."""
        sums = [*(moment for _, moment in self.done), *(moment for *_, moment in self.blocked), self.until]
        return 1 + sum(map(len, sums)) + len(self.moved)


class Past:
    """All that is known of an operation in a group of `ranks` ranks."""

    __slots__ = ("begin", "left", "ranks")

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.begin = _Found()  # no rank has arrived
        self.left = _MOST  # sums and messages that it still has room for


class Recalled:
    """The messages of a collective as long as nothing disturbs them.

    `make(**more)` makes the flow of this operation, with more settings of `Flow`. `enter(rank)` adds a rank to the
    `movement`; None if there is nothing to move.
    """

    def __init__(
        self, past: Past, make: Callable[..., Flow], movement: Movement | None, enter: Callable[[int], object] | None
    ) -> None:
        self._past = past
        self._make = make
        self._enter = enter
        self._movement = movement
        self._at = past.begin
        self._times_ns: dict[int, int] = {}  # of the arrivals, in their order
        self._outcomes: dict[int, Done | Blocked] = {}
        self._sums: Flow | None = None  # finds what is not known; None as long as all is known
        self._notes: Notes | None = None
        self.changed: list[int] = []  # ranks whose outcome was settled since `changed` was last read
        self.blocked: list[int] = []  # ranks that got stuck since `blocked` was last read

    def arrive(self, rank: int, time_ns: int) -> bool:
        """Let a rank arrive. False if what follows is not known and cannot be kept: a flow has to find it."""
        found = self._at.after.get(rank)
        if found is None:
            if not self._past.left:
                return False
            found = self._find(rank)
        self._at = found
        times_ns = self._times_ns
        times_ns[rank] = time_ns
        movement, enter = self._movement, self._enter
        if movement is not None and enter is not None:
            enter(rank)
            if movement.follows(rank):  # large tensors are not followed
                movement.take(found.moved)
        outcomes = self._outcomes
        for done, moment in found.done:
            outcomes[done] = Done(_latest(moment, times_ns))
            self.changed.append(done)
        for stuck, kind, peer, moment in found.blocked:
            outcomes[stuck] = Blocked(kind, peer, _latest(moment, times_ns))
            self.blocked.append(stuck)
        return True

    def _find(self, rank: int) -> _Found:
        """Work out the findings of the next arrival, and keep them."""
        flow, notes = self._sums, self._notes
        if flow is None or notes is None:
            notes = self._notes = Notes()
            flow = self._sums = self._make(movement=notes)
            flow.take_sums(self._past.ranks, _NEVER)
            for earlier in self._times_ns:
                self._sum(flow, earlier)
        flow.changed, flow.blocked, notes.moved = [], [], []
        self._sum(flow, rank)
        found = _Found()
        found.moved = notes.moved
        for other in flow.changed:
            outcome = flow.outcome(other)
            assert isinstance(outcome, Done)  # nothing disturbs it
            found.done.append((other, _moment(outcome.time_ns)))
        for other in dict.fromkeys(flow.blocked):
            outcome = flow.outcome(other)
            if isinstance(outcome, Blocked):  # otherwise it went on at the same arrival
                found.blocked.append((other, outcome.kind, outcome.peer, _moment(outcome.since_ns)))
        found.until = _moment(flow.until_ns)
        self._past.left = max(0, self._past.left - found.size)
        self._at.after[rank] = found
        return found

    def _sum(self, flow: Flow, rank: int) -> None:
        arrival: Any = np.full(self._past.ranks, _NEVER)
        arrival[rank] = 0
        flow.arrive(rank, arrival)

    def work_out(self) -> Flow:
        """Return the flow of all that have arrived, which can answer more and takes every kind of fact."""
        flow = self._make(movement=self._movement)
        flow.catch_up(self._times_ns.items())
        flow.changed = self.changed
        flow.blocked = [rank for rank, outcome in self._outcomes.items() if isinstance(outcome, Blocked)]
        return flow

    def conclude(self) -> None:
        """Do nothing: no rank fails while nothing disturbs the collective."""

    def outcome(self, rank: int) -> Done | Blocked | Failed | None:
        """The rank's state at the end of all that is known; None if it has not arrived."""
        return self._outcomes.get(rank)

    @property
    def until_ns(self) -> int:
        """When the last of its bytes have left, as far as is known; -1 if none move."""
        return _latest(self._at.until, self._times_ns)


def _moment(sums: Any) -> _Moment:
    return tuple((rank, int(after)) for rank, after in enumerate(sums) if after > _IS_SUM)


def _latest(moment: _Moment, times_ns: dict[int, int]) -> int:
    latest = -1
    for rank, after in moment:
        time_ns = times_ns[rank] + after
        if time_ns > latest:
            latest = time_ns
    return latest
