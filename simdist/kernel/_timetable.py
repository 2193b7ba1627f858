"""The future events of a world, and virtual time on its way there.

There are two kinds. A *timer* is certain (a sleep ends, a message arrives, a fault strikes) and is an event in
simpy's queue. A *deadline* happens only if nothing else does (a timeout). Deadlines are in a dictionary
outside the queue, because nearly all are withdrawn again, and a queue would keep each until its time comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import simpy

from simdist.errors import InternalError

__all__ = ["Expiring", "Timer", "Timetable"]


class Timer:
    """A callback at a virtual time; `cancel` withdraws it. Looks like a simpy event to simpy's queue."""

    __slots__ = ("_ok", "_timetable", "action", "callbacks")

    def __init__(self, timetable: Timetable, action: Callable[[], None]) -> None:
        self._ok = True
        self._timetable = timetable
        self.action: Callable[[], None] | None = action
        self.callbacks: tuple[Callable[[Timer], None], ...] | None = (_fire,)

    def cancel(self) -> None:
        """Withdraw the timer; does nothing after it has fired."""
        if self.action is not None:
            self.action = None
            self._timetable._live_timers -= 1


def _fire(timer: Timer) -> None:
    timetable = timer._timetable
    timetable.now_ns = timetable._environment._now  # type: ignore[assignment]  # an int: every delay is
    action = timer.action
    if action is not None:
        timer.action = None
        timetable._live_timers -= 1
        action()


class Expiring(Protocol):
    """Something with a deadline. Registered with `Timetable.watch_deadline`."""

    deadline_ns: int | None

    def expire(self) -> None:
        """React to the expired deadline."""


class _Queue(simpy.Environment):
    """Simpy's queue, without the methods that it binds to itself: only the collector could free it then."""


class Timetable:
    """Timers and deadlines, and the present virtual time."""

    __slots__ = (
        "_deadlines",
        "_earliest_deadline",
        "_environment",
        "_live_timers",
        "_step",
        "now_ns",
    )

    def __init__(self) -> None:
        self._environment = _Queue()
        self._step: Callable[[], None] = self._environment.step
        # Virtual nanoseconds since the start of the world; read-only. Hot: a copy of simpy's own clock.
        self.now_ns = 0
        self._deadlines: dict[Expiring, None] = {}
        self._earliest_deadline: float = math.inf  # never later than the true one
        self._live_timers = 0

    def call_at(self, time_ns: int, action: Callable[[], None]) -> Timer:
        """Call `action` at virtual time `time_ns` (not before now), outside any task; it must not park."""
        timer = Timer(self, action)
        self._live_timers += 1
        now = self.now_ns
        self._environment.schedule(timer, delay=time_ns - now if time_ns > now else 0)  # type: ignore[arg-type]
        return timer

    def timers(self) -> Iterator[tuple[int, Timer]]:
        """The certain events with their times: the timers that were not withdrawn."""
        for time_ns, _, _, timer in self._environment._queue:
            if isinstance(timer, Timer) and timer.action is not None:
                yield time_ns, timer

    def watch_deadline(self, thing: Expiring) -> None:
        """Call `thing.expire()` when virtual time reaches its `deadline_ns`, unless it is unwatched before.

        The deadline may move while it is watched, but only to a later time.
        """
        if thing.deadline_ns is None:
            raise InternalError(f"{thing!r} has no deadline to watch")
        self._deadlines[thing] = None
        self._earliest_deadline = min(self._earliest_deadline, thing.deadline_ns)

    def unwatch_deadline(self, thing: Expiring) -> None:
        """Withdraw a deadline; does nothing if there is none."""
        self._deadlines.pop(thing, None)

    def move_deadline(self, thing: Expiring, deadline_ns: int | None) -> None:
        """Watch it at another moment than before, or (None) no longer."""
        self._deadlines.pop(thing, None)
        thing.deadline_ns = deadline_ns
        if deadline_ns is not None:
            self._deadlines[thing] = None
            self._earliest_deadline = min(self._earliest_deadline, deadline_ns)

    def deadlines(self) -> list[tuple[int, Expiring]]:
        """The events that happen if nothing else does, with their times: the deadlines that were not withdrawn."""
        return [(thing.deadline_ns, thing) for thing in self._deadlines if thing.deadline_ns is not None]

    def wrap_steps(self, wrapper: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """Run each further step of the event queue through `wrapper`: timers' actions run inside."""
        self._step = wrapper(self._step)

    def _drop_events(self) -> None:
        """Drop all events: what they would call refers to the world."""
        self._deadlines.clear()
        self._environment._queue.clear()

    def _next_deadline(self, upcoming: float) -> bool:
        """Turn the earliest deadline into a timer if it is due before `upcoming`; False if there is none."""
        earliest = min((thing.deadline_ns for thing in self._deadlines if thing.deadline_ns is not None), default=None)
        self._earliest_deadline = math.inf if earliest is None else earliest
        if earliest is None:
            return False
        if earliest <= upcoming:
            self.call_at(earliest, self._expire)
        return True

    def _expire(self) -> None:
        now = self.now_ns
        due = [thing for thing in self._deadlines if thing.deadline_ns is not None and thing.deadline_ns <= now]
        for thing in due:
            # Expiring one thing may settle another.
            if thing in self._deadlines:
                del self._deadlines[thing]
                thing.expire()
        self._earliest_deadline = -1  # unknown: look again
