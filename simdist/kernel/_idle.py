"""When tasks that only sleep and poll count as a livelock.

Every queue step and hand-over is a *turn*. A stretch of turns in which the log gets nothing but sleeps and polls
without success is *idle*, and a long one is a livelock. The limit depends on what can be observed, and never on real
time, so that two runs give up at the same moment:

- Tasks that *repeat themselves* have little time: at every look the local variables of the user's functions hold the
  same numbers and texts, and no task has read the clock. `while True: time.sleep(0.001)` does so.
- If one of them counts or looks at the clock, the loop may have an end of its own, and gets several times as long.
- While something is *due*, the world is not idle for good: a fault, a message, the end of a sleep that began before the
  idle stretch, or a deadline that will be reached at the present pace of turns. A task that polls every millisecond may
  do so until another one's sleep of ten minutes ends. A sleep that began within the stretch is a poller's and does not
  count, nor does a wait with a timeout, nor an event so far ahead that the world would not reach it at the present
  pace.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from simdist.frames import frames_by_thread, is_ours, variables_of
from simdist.kernel._deadlock import describe_livelock
from simdist.kernel._task import Task, TaskState

if TYPE_CHECKING:
    from simdist.kernel._simulation import Simulation

__all__ = ["IDLE_TURNS", "Idleness"]

# Turns of tasks that repeat themselves, plus a share of it for each task; one to two seconds of real time.
IDLE_TURNS = 200_000
_SHARE_PER_TASK = 500
_PATIENCE = 5  # times as long for tasks that do not repeat themselves
_MOST = 20  # times as long at most, even if something is due

_LOOKS = 8  # number of looks within the shorter limit
_PLAIN = (int, float, str, bytes, type(None))


class Idleness:
    """Watches the stretch of turns since anything but sleeping and polling was logged."""

    def __init__(self, turns: int) -> None:
        self._turns = turns
        self._events = -1  # number of events that are neither sleeps nor polls
        self._began = 0  # the turn at which the stretch began
        self._began_ns = 0
        self._clock_reads = 0
        self._seen: Any = None  # the local variables of the tasks' functions then
        self._repeating = True

    def look(self, simulation: Simulation) -> int:
        """Judge the world; returns the turn at which to look again.

        Raises:
            LivelockError: it has been idle for too long, and nothing is due.
        """
        events = len(simulation.events) - simulation.polls
        turns = self._turns + self._turns // _SHARE_PER_TASK * len(simulation.tasks)
        if events != self._events:
            self._events = events
            self._began, self._began_ns = simulation.turns, simulation.now_ns
            self._clock_reads, self._seen, self._repeating = simulation.clock_reads, _held(simulation), True
        else:
            idle = simulation.turns - self._began
            self._repeating = (
                self._repeating and simulation.clock_reads == self._clock_reads and _held(simulation) == self._seen
            )
            limit = turns if self._repeating else _PATIENCE * turns
            if idle >= limit and not self._is_due(simulation, idle, limit, _MOST * _PATIENCE * turns):
                raise describe_livelock(simulation)
        return simulation.turns + max(1, turns // _LOOKS)

    def _is_due(self, simulation: Simulation, idle: int, limit: int, most: int) -> bool:
        """True if an event that is no poller's will happen within `most` turns; a deadline, within `limit`."""
        now_ns = simulation.now_ns
        pace = (now_ns - self._began_ns) / idle
        polling = [task.sleep_timer for task in simulation.tasks if task.parked_at_ns > self._began_ns]
        timers = [time_ns for time_ns, timer in simulation.timers() if time_ns > now_ns and timer not in polling]
        if timers and min(timers) - now_ns <= pace * (most - idle):
            return True
        asking = [task for task in simulation.tasks if task.parked_at_ns > self._began_ns]
        deadlines = [time_ns for time_ns, thing in simulation.deadlines() if time_ns > now_ns and thing not in asking]
        return bool(deadlines) and min(deadlines) - now_ns <= pace * (limit if self._repeating else most - idle)


def _held(simulation: Simulation) -> list[Any]:
    """The plain local variables in the user's functions of every task."""
    frames = frames_by_thread()
    alive = [task for task in simulation.tasks if task.state not in (TaskState.DONE, TaskState.FROZEN)]
    return [_held_by(task, frames.get(task.ident)) for task in alive]


def _held_by(task: Task, frame: Any) -> list[Any]:
    held: list[Any] = [task.name]
    while frame is not None and len(held) < 64:
        code = frame.f_code
        if not is_ours(frame) and code.co_flags & inspect.CO_OPTIMIZED:
            held.append(code)
            # Sorted by name, since names are unique: values may not be comparable.
            held += [pair for pair in sorted(variables_of(frame).items(), key=_name) if isinstance(pair[1], _PLAIN)]
        frame = frame.f_back
    return held


def _name(pair: tuple[str, Any]) -> str:
    return pair[0]
