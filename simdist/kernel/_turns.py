"""Tasks take turns: which one runs, which wait, and how the baton goes from one to the next.

The parking task steps the event queue itself until the next task is known, and hands the baton to it. When no task is
runnable and no timer is left, only deadlines can move the world: that instant is *quiescence*, at which the kernel
looks for deadlocks. A timeout of 30 virtual minutes therefore costs no real time, and a deadlock is found at the
instant it forms although every rank in it has a timeout.

Invariants: one thread at most holds the baton, that of `current`; a task's lock is held while the task is parked, and
released once for each time that it gets the baton.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from simdist.errors import DeadlockError, SimdistError, ThreadLimitError
from simdist.kernel._bus import Bus
from simdist.kernel._deadlock import Wait, describe_deadlock
from simdist.kernel._events import EventLog
from simdist.kernel._idle import IDLE_TURNS, Idleness
from simdist.kernel._lock_watch import named
from simdist.kernel._policy import FifoPolicy, Policy
from simdist.kernel._task import Task, TaskKilled, TaskState, methods_of_lock
from simdist.kernel._timetable import Timetable
from simdist.kernel._unwinding import calm
from simdist.records import deadlocked

if TYPE_CHECKING:
    from simdist.kernel._simulation import Simulation

__all__ = ["Turns"]

_Context = TypeVar("_Context")

_READY, _RUNNING, _PARKED = TaskState.READY, TaskState.RUNNING, TaskState.PARKED
_FROZEN, _DONE = TaskState.FROZEN, TaskState.DONE

_READS = 4096  # of the clock, after which a task that did nothing else is assumed to wait for time to pass
_FIRST_SPIN_NS, _LONGEST_SPIN_NS = 1_000, 10_000_000
_SHARE_OF_ASKING = 64  # the next pause is the time of polling divided by this


def _run(turns: Turns, task: Task) -> None:
    turns._thread_main(task)


def _wait_and_run(turns: Turns, task: Task) -> None:
    task.acquire()
    _first_function(task.name)(turns, task)


@functools.lru_cache(maxsize=8192)
def _first_function(name: str) -> Callable[[Turns, Task], None]:
    """The function of a task's thread, with the task's name, so that stacks of all threads show whose they are."""
    function: Callable[[Turns, Task], None] = named(_run, name)
    return function


class _Sleep:
    __slots__ = ("interruptible", "until_ns")

    def __init__(self, until_ns: int, *, interruptible: bool) -> None:
        self.until_ns = until_ns
        self.interruptible = interruptible

    def describe(self) -> str:
        return f"sleep until {self.until_ns / 1e9:.9f} s"

    def waits_for(self) -> Iterable[Task]:
        return ()


def _nothing() -> None:
    pass


class Turns(Timetable):
    """The tasks of a world, of which one runs at a time."""

    __slots__ = (
        "_alive",
        "_asked_ns",
        "_asked_since_ns",
        "_broken",
        "_closing",
        "_host_acquire",
        "_host_locked",
        "_host_release",
        "_idleness",
        "_next_look_at_reads",
        "_on_switch",
        "_previous",
        "_ready",
        "_spin_ns",
        "_stop",
        "_turns_at_reads",
        "_turns_to_look_at",
        "_until_quiet",
        "bus",
        "clock_reads",
        "current",
        "current_ident",
        "deadlock",
        "events",
        "gathers",
        "policy",
        "polls",
        "preempts",
        "start_thread",
        "tasks",
        "turns",
    )

    def __init__(
        self,
        policy: Policy | None = None,
        on_switch: Callable[[_Context | None, _Context | None], None] | None = None,
        idle_turns: int = IDLE_TURNS,
    ) -> None:
        super().__init__()
        self._ready: Policy = FifoPolicy() if policy is None else policy
        self.policy = self._ready  # for questions other than who goes next
        self.gathers = self._ready.touch is not None  # the policy chooses among all, and learns what they touch
        self.preempts = self._ready.preempts  # a thread may have to let others go first when it takes a lock
        self._on_switch: Callable[[Any, Any], None] | None = on_switch
        # The methods of a lock that is held while the world runs; the end of the world releases it.
        self._host_acquire, self._host_release, self._host_locked = methods_of_lock(_thread.allocate_lock())
        self._host_acquire()
        self.start_thread: Callable[..., int] = _thread.start_new_thread  # the layer above may replace it
        self._alive = 0  # tasks that are neither done nor frozen
        self.turns = 0  # hand-overs and queue steps: the watchdog's pulse
        self._idleness = Idleness(idle_turns)
        self._turns_to_look_at = idle_turns // 8  # when to see whether anything but polling has happened
        self.polls = 0  # events of the log that are only sleeps, or polls without success
        self.clock_reads = 0  # by tasks
        self._next_look_at_reads = _READS  # when to check whether they do nothing else
        self._turns_at_reads = -1  # at the last look
        self._spin_ns = _FIRST_SPIN_NS
        self._asked_ns = self._asked_since_ns = -1  # the last poll in vain, and the first of those without a pause
        self._closing = False
        self._stop: Any = None  # the stop at which the host wants to look; its `reached` is set there
        self._broken: BaseException | None = None  # an error inside the kernel itself
        self._previous: object = None  # context of the task that ran last
        self._until_quiet: dict[object, Callable[[], object]] = {}  # actions for quiescence, by their owner; in order
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.current_ident = 0  # thread of the current task; dispatchers compare with it
        self.events = EventLog()
        self.bus = Bus(log=self.events.add)
        self.deadlock: DeadlockError | None = None  # the first one found

    # -- what tasks do -------------------------------------------------------------------------------------------

    def spawn(self, function: Callable[[], None], name: str, context: object = None) -> Task:
        """Add a task that calls `function`; it becomes runnable now. `context` is handed to the switch hook."""
        task = Task(cast("Simulation", self), name, function, context)
        spawner = self.current
        if spawner is not None and spawner.context is context and self.owns_this_thread():
            task.parent = spawner
        self.tasks.append(task)
        self._alive += 1
        self._ready.push(task)
        return task

    def begin(self, task: Task) -> int:
        """Start the thread of a task now and not at its first turn; returns its identifier."""
        task.started = True
        task.ident = self.start_thread(_wait_and_run, (self, task))
        return task.ident

    def forget_task(self, task: Task) -> None:
        """Called by a task as its last step; `close` will skip it."""
        self.tasks.remove(task)

    def park(self, wait: Wait, deadline_ns: int | None = None) -> bool:
        """Give the baton away until the running task is woken.

        Returns False if the deadline came first. A task may be woken early: the caller checks its condition
        again.

        Raises:
            TaskKilled: the task was killed and its world is being torn down.
        """
        task = self.current
        if task is None or task.doomed:
            raise TaskKilled
        task.state = _PARKED
        task.waiting = wait
        task.parked_at_ns = self.now_ns
        if deadline_ns is not None:
            task.deadline_ns = deadline_ns
            self.watch_deadline(task)
        following = self._choose()
        if following is not task:
            self._hand_over(following)
            acquire = task.acquire
            acquire()
            self.current_ident = task.ident
            if task.doomed:
                raise TaskKilled
        task.state = _RUNNING
        task.waiting = None
        if deadline_ns is not None:
            expired = task.deadline_ns == -1
            self._deadlines.pop(task, None)
            task.deadline_ns = None
            return not expired
        return True

    def park_until_quiet(self, wait: Wait) -> None:
        """Park until nothing but deadlines can happen any more; the task may also be woken before.

        For tasks that wait for something outside the simulation: all events of this world that it may depend on have
        happened then.

        Raises:
            TaskKilled: as `park`.
        """
        task = self._running()
        self._until_quiet[task] = functools.partial(self.wake, task)
        try:
            self.park(wait)
        finally:
            self._until_quiet.pop(task, None)

    def offer(self) -> None:
        """Let the policy choose anew among the tasks that can run, including the running one.

        Raises:
            TaskKilled: as `park`.
        """
        task = self.current
        if task is None or task.doomed:
            raise TaskKilled
        if not len(self._ready):
            return
        task.state = _READY
        self._ready.push(task)
        following = self._choose()
        if following is not task:
            self._hand_over(following)
            acquire = task.acquire
            acquire()
            self.current_ident = task.ident
            if task.doomed:
                raise TaskKilled
        task.state = _RUNNING

    def wake(self, task: Task) -> None:
        """Make a parked task runnable; does nothing to any other."""
        if task.state is _PARKED:
            if task.paused:
                task.woken_while_paused = True
            else:
                task.state = _READY
                self._ready.push(task)

    def sleep(self, duration_ns: int, *, interrupted: Callable[[], bool] | None = None) -> None:
        """Park the running task for a span of virtual time; zero lets every other runnable task go first.

        It ends early when the task is woken and `interrupted()` is true.
        """
        task = self._running()
        until_ns = self.now_ns + max(0, duration_ns)
        wait = _Sleep(until_ns, interruptible=interrupted is not None)
        task.sleep_timer = self.call_at(until_ns, lambda: self.wake(task))
        timer = task.sleep_timer
        while timer.action is not None:
            self.park(wait)
            if interrupted is not None and interrupted():
                timer.cancel()
        task.sleep_timer = None

    def kill(self, task: Task) -> None:
        """Stop a task for good: it never runs again. Its thread is unwound at teardown, and every effect is refused.

        A task that kills itself does not return from this call.
        """
        if task.state in (_DONE, _FROZEN):
            return
        running = task is self.current and task.state is _RUNNING
        task.state = _FROZEN
        self._alive -= 1
        self._deadlines.pop(task, None)
        if task.sleep_timer is not None:
            task.sleep_timer.cancel()
        if running and _thread.get_ident() == task.ident:
            self._hand_over(self._choose())
            task.acquire()
            self.current_ident = task.ident
            raise TaskKilled

    def pause(self, task: Task) -> None:
        """Stop a task as SIGSTOP does, until `resume`. The running task stops at its next `park`."""
        if not task.paused:
            task.paused = True
            task.woken_while_paused = False

    def resume(self, task: Task) -> None:
        """Let a paused task go on."""
        if task.paused:
            task.paused = False
            if task.woken_while_paused:
                task.woken_while_paused = False
                self.wake(task)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other task run inside this context, even when the running one parks, unless it needs them."""
        task = self._running()
        others = [each for each in self.tasks if each is not task and not each.paused]
        for each in others:
            self.pause(each)

        def resume() -> None:
            while others:
                self.resume(others.pop(0))

        self._until_quiet[resume] = resume
        try:
            yield
        finally:
            self._until_quiet.pop(resume, None)
            resume()

    def check(self) -> Task:
        """Return the running task.

        Raises:
            TaskKilled: it was killed; nothing that it does has an effect any more.
            SimdistError: the caller is no task of this world.
        """
        task = self._running()
        if task.doomed:
            raise TaskKilled
        return task

    def owns_this_thread(self) -> bool:
        """True if the calling thread is the task that holds the baton."""
        return _thread.get_ident() == self.current_ident

    def read_clock(self) -> int:
        """Return `now_ns` for a task, which may be waiting for a certain time.

        Time stands still while a task runs, and a loop that only reads the clock would never end. So when a task
        has read it thousands of times without a pause, time passes after all: a microsecond, then two, then four.
        """
        self.clock_reads += 1
        if self.clock_reads >= self._next_look_at_reads:
            self._look_at_reads()
        return self.now_ns

    def dwell(self, duration_ns: int) -> bool:
        """Let time pass for the running task, which did not ask for it; False if it can't wait now, as when killed."""
        task = self.current
        if task is None or task.state is not _RUNNING or task.doomed or not self.owns_this_thread():
            return False
        self.sleep(duration_ns)
        return True

    def _look_at_reads(self) -> None:
        spinning = self.turns == self._turns_at_reads
        if spinning and self.dwell(self._spin_ns):
            self._spin_ns = min(2 * self._spin_ns, _LONGEST_SPIN_NS)
        elif not spinning:
            self._spin_ns = _FIRST_SPIN_NS
        self._turns_at_reads = self.turns
        self._next_look_at_reads = self.clock_reads + _READS

    def ask(self) -> None:
        """Let time pass for the running task, which has polled something without success.

        One nanosecond at first. A task that only polls pauses for a share of the time that it has polled for so far,
        ten milliseconds at most, so that it gets through a second in about a thousand polls.
        """
        if self.now_ns != self._asked_ns:
            self._asked_since_ns = self.now_ns
        share_ns = (self.now_ns - self._asked_since_ns) // _SHARE_OF_ASKING
        self.sleep(min(max(1, share_ns), _LONGEST_SPIN_NS))
        self._asked_ns = self.now_ns

    def _running(self) -> Task:
        task = self.current
        if task is None or _thread.get_ident() != self.current_ident:
            raise SimdistError(
                "this thread belongs to no simulated rank: it was started outside the world, and simulated operations "
                "are for the ranks and the threads that they start"
            )
        return task

    # -- the baton -----------------------------------------------------------------------------------------------

    def _choose(self) -> Task | None:
        """Return the next task to run, after stepping the queue as far as needed; None when the world is over."""
        try:
            while True:
                ready = self._ready
                while len(ready):
                    task = ready.pop()
                    if task.state is _READY:
                        if not task.paused:
                            return task
                        task.state = _PARKED
                        task.woken_while_paused = True
                if self._alive == 0 or self._closing:
                    return None
                if self._until_quiet and not self._live_timers:
                    self._until_quiet.pop(next(iter(self._until_quiet)))()
                    continue
                upcoming = self._environment.peek() if self._live_timers else math.inf
                certain = self._earliest_deadline > upcoming or self._arm_deadline(upcoming)
                if self._stop is None and not (certain and self._live_timers):
                    return None  # nothing will ever happen again
                self.turns += 1
                if self.turns > self._turns_to_look_at:
                    self._turns_to_look_at = self._idleness.look(cast("Simulation", self))
                self._step()
                while self.gathers and self._live_timers and self._environment.peek() <= self.now_ns:
                    self._step()  # all tasks that wake at this instant are there to choose from
                if self._stop is not None and self._stop.reached:
                    return None
        except BaseException as error:  # in a timer's action: a bug, and no task's fault
            self._broken = error
            return None

    def _arm_deadline(self, upcoming: float) -> bool:
        """Turn the earliest deadline into a timer if it is due before `upcoming`; False if there is nothing at all."""
        if not self._live_timers:
            self._look_for_deadlock()
        if self._next_deadline(upcoming) or self._live_timers:
            return True
        self._look_for_deadlock()
        return False

    def _look_for_deadlock(self) -> None:
        if self.deadlock is None:
            self.deadlock = describe_deadlock(cast("Simulation", self))
            if self.deadlock is not None:
                self.bus.record(deadlocked(self.now_ns, -1, self.deadlock.cycle, self.deadlock.report))

    def _switch_context(self, context: object) -> None:
        if self._on_switch is not None and context is not self._previous:
            self._on_switch(self._previous, context)
            self._previous = context

    def _hand_over(self, task: Task | None) -> None:
        self.turns += 1
        if task is None:
            if self._host_locked():  # a task that ends long after it was given up finds the lock released
                self._host_release()
            return
        self.current = task
        on_switch = self._on_switch
        if on_switch is not None and task.context is not self._previous:
            on_switch(self._previous, task.context)
            self._previous = task.context
        if task.started:
            release = task.release
            release()
        else:
            task.started = True
            try:
                self.start_thread(_first_function(task.name), (self, task))
            except (RuntimeError, MemoryError) as error:
                task.started = False
                self.current = None
                self._broken = self._refused(task, error)
                self._hand_over(None)

    def _refused(self, task: Task, error: Exception) -> ThreadLimitError:
        threads = sum(each.started and each.state is not _DONE for each in self.tasks)
        return ThreadLimitError(
            f"the system starts no thread for {task.name}: {str(error) or type(error).__name__}\n"
            f"each rank has a thread, and each thread of a rank; {threads} of this world run. Raise the limit of "
            "threads (ulimit -u, or the container's number of processes) or of memory (ulimit -v), or run fewer ranks"
        )

    def _thread_main(self, task: Task) -> None:
        task.ident = self.current_ident = _thread.get_ident()
        task.native_ident = _thread.get_native_id()
        task.state = _RUNNING
        try:
            if not task.doomed:
                task.function()
        except TaskKilled:
            pass
        except BaseException as error:
            task.error = error
        finally:
            while task.insisted and not task.calm:
                try:  # noqa: SIM105  # to enter a context manager is a call, and there it would be raised
                    calm(task)
                except TaskKilled:
                    pass
            if task.at_end is not None:
                at_end, task.at_end = task.at_end, None
                try:
                    at_end()
                except BaseException as error:
                    task.error = error
            # A thread not made by `threading` leaves a dummy there if any code called `threading.current_thread`.
            threading._active.pop(task.ident, None)  # type: ignore[attr-defined]
            if task.state is not _FROZEN:
                self._alive -= 1
            task.function = _nothing  # the function refers to what is gone now, perhaps to the task
            task.state = _DONE
            self._hand_over(None if self._closing else self._choose())
