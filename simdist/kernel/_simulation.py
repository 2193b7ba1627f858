"""The loop: virtual time moves, tasks take turns, and nothing hangs.

The future is in `_timetable.py`, the actions of tasks in `_turns.py`. This file is the world as its host sees it: the
host runs it, waits for it, looks at it, and unwinds the tasks that are left.

Circle of imports: a task belongs to its simulation, and the simulation hands the baton to its tasks; policies, waits,
reports and the watchdog look at both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from simpy.core import EventPriority  # type: ignore[attr-defined]  # simpy lists no exports

from simdist.errors import InternalError, LivelockError, SimdistError, ThreadLimitError
from simdist.kernel._idle import IDLE_TURNS
from simdist.kernel._policy import Policy
from simdist.kernel._task import Task, TaskKilled, TaskState
from simdist.kernel._turns import Turns
from simdist.kernel._unwinding import insist, settle, undisturbed
from simdist.kernel._watchdog import Watchdog, processor_seconds

__all__ = ["Simulation"]

_Context = TypeVar("_Context")

_RUNNING, _DONE = TaskState.RUNNING, TaskState.DONE

_GRACE_S = 1.0  # of real time, in which a thread should unwind without insisting
_ABANDONED_S = 0.2  # likewise, after Ctrl-C, or when it stalls
# Number of further attempts, and the time between them; a thread that computes nothing is given up earlier.
_ATTEMPTS, _FEW_ATTEMPTS, _BETWEEN_S = 500, 20, 0.03
_COLLECTION_S = 0.1

_LAST = EventPriority(2)  # after everything else at the same instant; simpy's own are 0 and 1


class _Stop:
    """The instant at which the host wants the baton. Not a `Timer`: nothing in the world waits for it."""

    def __init__(self, simulation: Simulation) -> None:
        self._ok = True
        self._simulation = simulation
        self.reached = False
        self.callbacks: Any = (_reach,)


def _reach(stop: _Stop) -> None:
    simulation = stop._simulation
    simulation.now_ns = simulation._environment._now  # type: ignore[assignment]
    stop.reached = True


class Simulation(Turns):
    """Virtual time and the tasks that live in it.

    Example:
        >>> simulation = Simulation()
        >>> task = simulation.spawn(lambda: simulation.sleep(5), "sleeper")
        >>> simulation.run()
        >>> simulation.now_ns
        5
    """

    __slots__ = (
        "_aborted",
        "_watchdog",
        "watched",
    )

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        on_switch: Callable[[_Context | None, _Context | None], None] | None = None,
        stall_s: float = 30.0,
        progress: Callable[[int, int], None] | None = None,
        idle_turns: int = IDLE_TURNS,
    ) -> None:
        super().__init__(policy, on_switch, idle_turns)
        self.watched = True  # by the watchdog; not while a person debugs a task
        self._watchdog = Watchdog(stall_s, progress)
        self._aborted: BaseException | None = None  # the error that ended the world from outside: see `abort`

    def run(self) -> None:
        """Run until no task can go on. Afterwards call `close`.

        Raises:
            StallError: a task kept the baton for longer than the watchdog allows.
            LivelockError: tasks only sleep and poll, and nothing else has happened for very long.
            InternalError: the kernel broke.
            ThreadLimitError: the system starts no thread for a task.
            BaseException: the error given to `abort`, or an error of `progress`.
        """
        first = self._choose()
        if first is not None:
            self._hand_over(first)
            self._watch()
        if self._aborted is not None:
            raise self._aborted
        if isinstance(self._broken, LivelockError | ThreadLimitError):
            raise self._broken
        if self._broken is not None:
            raise InternalError(f"the kernel failed: {self._broken!r}") from self._broken

    def run_until(self, time_ns: int) -> bool:
        """Run everything up to virtual time `time_ns`, including the events of that instant, and stop there.

        The calling thread may then look at the world and act on it, and go on with another `run_until` or `run`. The
        stop leaves no trace: the world goes on as if there had been none. Returns False if every task has ended, and
        time stands still at the last end; while tasks wait for something that never arrives, time still moves to
        `time_ns`.

        Raises:
            SimdistError: `time_ns` has passed.
            StallError, InternalError: as `run`.
        """
        now_ns = self.now_ns
        if time_ns < now_ns:
            raise SimdistError(f"virtual time is {now_ns} ns already; it does not go back to {time_ns} ns")
        self._stop = stop = _Stop(self)
        self._environment.schedule(stop, _LAST, time_ns - now_ns)  # type: ignore[arg-type]  # looks like an event
        try:
            self.run()
        finally:
            self._stop = None
            stop.callbacks = ()  # if the world ended before
        self._switch_context(None)
        self.current = None
        self.current_ident = 0
        return stop.reached

    def keep_open(self) -> None:
        """Keep the world going although every task may have ended: more will be spawned. Undone by `let_end`."""
        self._alive += 1

    def let_end(self) -> None:
        """Undo one `keep_open`."""
        self._alive -= 1

    def abort(self, error: BaseException) -> NoReturn:
        """End the world: `run` raises `error` as it is. Called by a task on behalf of a watcher of the world."""
        self._aborted = error
        self._closing = True
        self._running().doomed = True
        raise TaskKilled

    def close(self) -> list[str]:
        """Unwind every task that is left, so that no thread outlives the world; returns the names of those that do.

        A thread outlives it only if it blocks outside the simulation; it ends when that call returns.
        """
        self._closing = True
        leaked = []
        grace_s = _GRACE_S
        for task in self.tasks:
            if task.state is _DONE or not task.started:
                continue
            task.doomed = True
            if task is self.current and task.state is _RUNNING:
                continue  # the watchdog abandoned it, and has done what can be done
            self._hand_over(task)
            if not self._regain(task, grace_s, ended=True):
                leaked.append(task.name)
            if task.insisted:
                grace_s = _BETWEEN_S  # the others probably act like this one
        leaked += [
            task.name for task in self.tasks if task.started and task.state is not _DONE and task.name not in leaked
        ]
        self._drop_events()
        try:
            self._switch_context(None)
        finally:
            self.current = None
            self.current_ident = 0
        if any(task.insisted for task in self.tasks):
            settle()
        for task in self.tasks:
            task.context = task.waiting = None  # these and the task refer to each other
        return leaked

    def forget(self, error: BaseException) -> None:
        """Forget all tasks in a forked child, which has none of the threads; a `run` that goes on ends."""
        self._aborted = error
        self._closing = True
        self.tasks.clear()
        self.current = None
        self.current_ident = 0
        self._watchdog.stop()
        if self._host_locked():
            self._host_release()

    # -- inside --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._watchdog.wait(self)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Get the baton back from a task that does not give it: after Ctrl-C, or when it stalls."""
        self._closing = True
        task = self.current
        if task is None:
            return
        task.doomed = True
        self._regain(task, _ABANDONED_S)

    def _regain(self, task: Task, grace_s: float, *, ended: bool = False) -> bool:
        """Wait until a doomed task gives the baton back, or is over; insist if it does not. False if that fails."""
        if self._comes_back(task, grace_s, ended=ended):
            return True
        with undisturbed():
            # Let a collection that has begun, and what it calls, end.
            if self._comes_back(task, _COLLECTION_S, ended=ended):
                return True
            used_s = processor_seconds(task)
            for attempt in range(_ATTEMPTS):
                insist(task)
                if self._comes_back(task, _BETWEEN_S, ended=ended):
                    return True
                if attempt == _FEW_ATTEMPTS and processor_seconds(task) == used_s:
                    return False  # it is blocked, and will get the exception when its call returns
        return False

    def _comes_back(self, task: Task, within_s: float, *, ended: bool) -> bool:
        acquired = self._host_acquire(timeout=within_s)
        if (
            task.ident and task.ident not in sys._current_frames()
        ):  # perhaps the exception struck when it was on its very last steps
            task.state = _DONE
        # A task that was given up before may have released the lock.
        return task.state is _DONE or (acquired and not ended)
