"""Locks and queues of C on which tasks wait in virtual time.

`threading` and `queue` are Python code over three types of C: `Lock`, `RLock` and `SimpleQueue`; the locks of
`multiprocessing`, which tqdm uses too, are over a fourth. While a world lives, the methods of these types do something
else for tasks, no matter which code made the lock, or when; for every other thread of the host program they are the
originals. What Python builds on them (conditions, events, semaphores, barriers, queues, pools, joins) needs nothing
more, and timeouts are waits with a deadline.

This module knows which task holds which lock and which tasks wait for it; `_lock_kinds` has the types, `_lock_methods`
what their methods do.

- A task that takes a lock takes the real one, so that threads of the host keep out. It never really blocks on it: if
  the lock is taken, the task parks until the holder releases it. The lock then is *promised* to the task that has
  waited longest, and no other task gets it meanwhile: no thread starves, in any order in which the tasks take turns.
- Ranks are processes, and a lock made before the world began, or by a module that they share, is a separate lock in
  each of them. A task that finds it held by another rank gets a *stand-in*, a real lock of its own process, which
  serves the process until no task of the process holds it. Ranks share the other parts of these objects, such as the
  flag of an event or the items of a queue, as they share any other object.

Invariant: `_held` has every lock that a task took and did not give back, and the holder is the task that took it last.

In doubt: a bound method that was taken before the world began (`take = lock.acquire` at the top of a module) is the
original, unless it is found in the user's modules (`_early`). The condition variables of `threading` keep such methods,
and get new ones when a task waits with them. A method that an installed package keeps takes the real lock, and a task
that finds this held by no task looks again every virtual millisecond.
"""

from __future__ import annotations

import _queue
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.errors import InternalError
from simdist.kernel import Simulation, Task, TaskKilled, TaskState
from simdist.process._events import HandedOver
from simdist.process._lateness import due_at
from simdist.process._process import process_of
from simdist.process._waiting_words import parked_in
from simdist.process.threads._lock_kinds import KINDS, RECURSIVE, Kind

if TYPE_CHECKING:
    from _thread import LockType

    from simdist.process._process import SimProcess

__all__ = ["LockWait", "Locks", "give_back", "nanoseconds"]

_T = TypeVar("_T")
_HOST_S = 0.2  # real seconds that a thread of the host may keep a lock before the world goes on without it
_LOOK_NS = 1_000_000
_LONGEST_S = threading.TIMEOUT_MAX


class LockWait:
    """What a task waits on that wants a lock or an item of a queue."""

    __slots__ = ("_locks", "_name", "_thing", "task", "timed")
    interruptible = True  # by signals

    def __init__(self, locks: Locks, thing: object, task: Task, name: str, *, timed: bool) -> None:
        self._locks = locks
        self._thing = thing
        self._name = name
        self.task = task
        self.timed = timed  # it has a timeout

    def describe(self) -> str:
        """The method of `threading` or `queue` in which the program waits."""
        return parked_in(self.task) or self._name

    def waits_for(self) -> Iterable[Task]:
        """The task that has the lock; no task in particular if that is the one that waits, as in a condition."""
        holder = None if self.timed else self._locks.holder_of(self._thing)
        return () if holder is None or holder is self.task else (holder,)


class Locks:
    """The locks that the tasks of one world hold."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._held: dict[object, Task] = {}
        self._waiting: dict[object, deque[LockWait]] = {}
        self._promised: dict[object, Task] = {}
        self._for_host: dict[Task, None] = {}  # tasks that sleep until they look again at a lock that the host holds
        self._stand_ins: dict[tuple[object, object], object] = {}  # by process and lock
        self._stands_for: dict[object, tuple[object, object]] = {}
        # Locks between the processes of one rank, and the rank's own process.
        self._of_family: dict[object, SimProcess] = {}

    def share(self, lock: object, rank: SimProcess) -> None:
        """Note a lock of `multiprocessing` that a rank made: it is one for the rank and all children."""
        self._of_family[lock] = rank

    def _is_shared(self, lock: object, task: Task) -> bool:
        """True if the lock is one for all processes of the task's rank."""
        rank = self._of_family.get(lock) if self._of_family else None
        return rank is not None and rank is process_of(task).oldest

    def holder_of(self, lock: object) -> Task | None:
        """The task that has it, or will have it next."""
        return self._promised.get(lock) or self._held.get(lock)

    def running(self) -> Task:
        """The task with the baton."""
        task = self.simulation.current
        assert task is not None
        return task

    def offer(self, task: Task) -> None:
        """Let other threads go first if the policy decides so."""
        beside = self.simulation.preempts and len(process_of(task).tasks) > 1
        if beside and not task.doomed and task.state is TaskState.RUNNING and not _importing(sys._getframe(1)):
            self.simulation.offer()

    def report(self, task: Task, thing: object, *, gives: bool) -> None:
        """Report to listeners that a task has taken a lock or an item of a queue, or given one; check `heard` first."""
        bus = self.simulation.bus
        if bus.hears(HandedOver):
            bus.report(HandedOver(task, thing, gives))

    # -- locks ---------------------------------------------------------------------------------------------------

    def acquire(self, kind: Kind, lock: object, blocking: bool, timeout: float) -> bool:
        """Take a lock for the running task.

        Raises:
            ValueError, OverflowError: as the original.
            TaskKilled: as `Simulation.park`; only if it would have to wait.
        """
        task = self.running()
        if timeout != -1 and not (blocking and isinstance(timeout, int | float) and 0 <= timeout <= _LONGEST_S):
            return kind.take(lock, blocking, timeout)
        if blocking:
            self.offer(task)
        if self._stand_ins:
            lock = self._stand_ins.get((task.context, lock), lock)
        if self._promised.get(lock, task) is task and kind.take(lock, False):
            self._held[lock] = task
            if self.simulation.bus.heard:
                self.report(task, lock, gives=False)
            return True
        if self._of_family and self._is_shared(lock, task):
            if not blocking or timeout == 0:
                return False
            limit_ns = None if timeout == -1 else due_at(process_of(task), nanoseconds(timeout))
            return self._wait(kind, lock, task, limit_ns)
        holder = self.holder_of(lock)
        if holder is not None and holder.context is not task.context:
            return self._stand_in(kind, lock, task)
        if not blocking or timeout == 0:
            return False
        deadline_ns = None if timeout == -1 else due_at(process_of(task), nanoseconds(timeout))
        if holder is None:
            return self._wait_for_host(kind, lock, task, deadline_ns)
        return self._wait(kind, lock, task, deadline_ns)

    def release(self, kind: Kind, lock: object) -> None:
        """Give it back.

        Raises:
            RuntimeError: as the original.
        """
        if self._stand_ins:
            lock = self._stand_ins.get((self._process(), lock), lock)
        if self.simulation.bus.heard:
            self.report(self.running(), lock, gives=True)
        kind.give(lock)
        if kind.is_free_again(lock) or lock in self._of_family:
            self._freed(lock)

    def locked(self, lock: object, ask: Callable[[object], bool]) -> bool:
        """True if a task of the process has it, or a thread of the host."""
        if self._stand_ins:
            lock = self._stand_ins.get((self._process(), lock), lock)
        holder = self.holder_of(lock)
        return (holder is None or holder.context is self._process()) and (lock in self._promised or ask(lock))

    def meant(self, lock: object) -> object:
        """The lock that serves the process: `lock`, or its stand-in."""
        return self._stand_ins.get((self._process(), lock), lock) if self._stand_ins else lock

    def give_back_all(self, lock: object, save: Callable[[object], _T]) -> _T:
        """For a condition: what `_release_save` of an RLock does."""
        lock = self.meant(lock)
        if self.simulation.bus.heard:
            self.report(self.running(), lock, gives=True)
        state = save(lock)
        self._freed(lock)
        return state

    def take_all(self, lock: object, state: _T, restore: Callable[[object, _T], None]) -> None:
        """For a condition: what `_acquire_restore` of an RLock does."""
        self.acquire(RECURSIVE, lock, True, -1)
        lock = self.meant(lock)
        RECURSIVE.give(lock)
        restore(lock, state)

    # -- queues --------------------------------------------------------------------------------------------------

    def get(self, queue: object, timeout: float | None, take: Callable[[object, bool], _T]) -> _T:
        """Wait for an item of a queue that is empty.

        Raises:
            Empty: `timeout` passed first.
        """
        task = self.running()
        deadline_ns = None if timeout is None else due_at(process_of(task), nanoseconds(timeout))
        wait = LockWait(self, queue, task, "SimpleQueue.get", timed=timeout is not None)
        line = self._waiting.setdefault(queue, deque())
        line.append(wait)
        try:
            while True:
                in_time = self._park(wait, deadline_ns)
                try:
                    item = take(queue, False)
                    self.report(task, queue, gives=False)
                    return item
                except _queue.Empty:
                    if not in_time:
                        raise
                if wait not in line:
                    line.appendleft(wait)  # another task was faster
        finally:
            self._leave(queue, wait)

    def put(self, queue: object) -> None:
        """Wake the first task that waits for an item, after one was put."""
        if self.simulation.bus.heard:
            self.report(self.running(), queue, gives=True)
        line = self._waiting.get(queue)
        if line:
            for wait in list(line):
                line.remove(wait)
                if wait.task.state is not TaskState.FROZEN:
                    self.simulation.wake(wait.task)
                    return

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the locks that tasks still held; called when no task is left."""
        for lock in self._held:
            next(kind for kind in KINDS if isinstance(lock, kind.type)).reset(lock)
        self._held.clear()
        self._waiting.clear()
        self._promised.clear()
        self._stand_ins.clear()
        self._stands_for.clear()
        self._of_family.clear()

    # -- inside --------------------------------------------------------------------------------------------------

    def _process(self) -> object:
        task = self.simulation.current
        return None if task is None else task.context

    def _park(self, wait: LockWait, deadline_ns: int | None) -> bool:
        task = wait.task
        if task.doomed:
            raise TaskKilled
        if task.state is not TaskState.RUNNING:  # a timer's action, or a finalizer that ran in the kernel
            raise InternalError("a taken lock was requested where no task can wait")
        in_time = self.simulation.park(wait, deadline_ns)
        process = process_of(task)
        if process.pending:
            process.handle_signals()
        if process.inbox and self._held.get(wait._thing, task) is task:
            # Not while another task holds the lock: a delivered callback may want the same one.
            process.drain()
        return in_time

    def _wait(self, kind: Kind, lock: object, task: Task, deadline_ns: int | None) -> bool:
        wait = LockWait(self, lock, task, f"{kind.name}.acquire", timed=deadline_ns is not None)
        self._waiting.setdefault(lock, deque()).append(wait)
        process = process_of(task)
        try:
            while True:
                in_time = self._park(wait, deadline_ns)
                if process.between and (not in_time or self._promised.get(lock) is task):
                    process.do_between()  # before it has the lock, which an error would leave taken
                if self._promised.get(lock, task) is task:
                    if kind.take(lock, False):
                        self._held[lock] = task
                        self.report(task, lock, gives=False)
                        return True
                    if (
                        self._promised.get(lock) is task and lock not in self._of_family
                    ):  # a thread of the host was faster
                        return self._wait_for_host(kind, lock, task, deadline_ns)
                if not in_time:
                    return False
        finally:
            self._leave(lock, wait)
            if self._promised.get(lock) is task:
                del self._promised[lock]
                if self._held.get(lock) is not task:
                    self._freed(lock)

    def _leave(self, thing: object, wait: LockWait) -> None:
        line = self._waiting.get(thing)
        if line is not None:
            if wait in line:
                line.remove(wait)
            if not line:
                del self._waiting[thing]

    def _freed(self, lock: Any) -> None:
        self._held.pop(lock, None)
        if lock in self._of_family and lock.maxvalue > 1:  # a semaphore: several tasks may take it
            for wait in self._waiting.get(lock, ()):
                self.simulation.wake(wait.task)
            return
        for wait in self._waiting.get(lock, ()):
            if wait.task.state is not TaskState.FROZEN and not wait.task.doomed:
                self._promised[lock] = wait.task
                self.simulation.wake(wait.task)
                return
        if self._stands_for:
            key = self._stands_for.get(lock)
            if key is not None:
                del self._stands_for[lock], self._stand_ins[key]

    def _stand_in(self, kind: Kind, lock: object, task: Task) -> bool:
        stand_in = kind.make(lock)
        self._stand_ins[task.context, lock] = stand_in
        self._stands_for[stand_in] = task.context, lock
        self._held[stand_in] = task
        return kind.take(stand_in, False)

    def _wait_for_host(self, kind: Kind, lock: object, task: Task, deadline_ns: int | None) -> bool:
        simulation = self.simulation
        real_s = _HOST_S
        while not kind.take(lock, True, real_s):
            if task.doomed or task.state is not TaskState.RUNNING:
                raise TaskKilled
            if deadline_ns is not None and simulation.now_ns >= deadline_ns:
                return False
            if deadline_ns is None and self._all_wait_for_host():
                real_s = _HOST_S  # keep the baton: virtual time can't go on, so it may be a stall
                continue
            real_s = 0.001
            self._for_host[task] = None
            try:
                simulation.sleep(_LOOK_NS if deadline_ns is None else min(_LOOK_NS, deadline_ns - simulation.now_ns))
            finally:
                del self._for_host[task]
        self._held[lock] = task
        return True

    def _all_wait_for_host(self) -> bool:
        """True if all that will happen in the world is that tasks check again whether the host has released a lock."""
        simulation = self.simulation
        if any(task.state is TaskState.READY and task not in self._for_host for task in simulation.tasks):
            return False
        return sum(1 for _ in simulation.timers()) <= len(self._for_host)


def _importing(frame: types.FrameType | None) -> bool:
    """True inside an import: only the first world of a process imports a module, and the second must run the same."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def nanoseconds(seconds: float) -> int:
    """A timeout in nanoseconds, at least the clock's step: after it a task must see that time has passed."""
    return max(1, round(seconds * 1e9)) if seconds > 0 else 0


def give_back(lock: LockType) -> None:
    """Release a lock that an ending task still holds."""
    if lock.locked():
        lock.release()
