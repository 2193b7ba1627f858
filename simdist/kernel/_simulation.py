"""The loop: virtual time moves, tasks take turns, and nothing hangs.

Two kinds of things lie in the future. A *timer* is certain (a sleep ends, a message arrives, a fault strikes) and is
an event in simpy's queue. A *deadline* is what happens only if nothing else does (a timeout); deadlines stand in a
dictionary beside the queue, because nearly all are withdrawn again, and a queue would keep each until its time comes.
When no task is runnable and no timer is left, only deadlines can move the world: that instant is *quiescence*, where
deadlocks are looked for. A timeout of 30 virtual minutes therefore costs no real time, and a deadlock is found at the
instant it forms although every rank in it has a timeout.
"""

from __future__ import annotations

import _thread
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Protocol

import simpy
from simpy.core import EventPriority  # type: ignore[attr-defined]  # simpy lists no exports

from simdist.errors import DeadlockError, InternalError, LivelockError, SimdistError
from simdist.kernel._bus import Bus
from simdist.kernel._deadlock import Wait, describe_deadlock
from simdist.kernel._events import EventLog
from simdist.kernel._idle import IDLE_TURNS, Idleness
from simdist.kernel._lock_watch import named
from simdist.kernel._policy import FifoPolicy, Policy
from simdist.kernel._task import Task, TaskKilled, TaskState, methods_of_lock
from simdist.kernel._unwinding import calm, insist, settle, without_collector
from simdist.kernel._watchdog import Watchdog, processor_seconds
from simdist.records import deadlocked

__all__ = ["Expiring", "Simulation", "Timer"]

_READY, _RUNNING, _PARKED = TaskState.READY, TaskState.RUNNING, TaskState.PARKED
_FROZEN, _DONE = TaskState.FROZEN, TaskState.DONE

_READS = 4096  # of the clock, after which a task that did nothing else is taken to wait for time to pass
_FIRST_SPIN_NS, _LONGEST_SPIN_NS = 1_000, 10_000_000

_GRACE_S = 1.0  # of real time, in which a thread should unwind by itself
# Then it is insisted on that so often, this long after each other; a thread that computes nothing is given up earlier.
_ATTEMPTS, _FEW_ATTEMPTS, _BETWEEN_S = 500, 20, 0.03
_COLLECTION_S = 0.1


class Timer:
    """A callback at a virtual time; `cancel` withdraws it. Looks like a simpy event to simpy's queue."""

    __slots__ = ("_ok", "_simulation", "action", "callbacks")

    def __init__(self, simulation: Simulation, action: Callable[[], None]) -> None:
        self._ok = True
        self._simulation = simulation
        self.action: Callable[[], None] | None = action
        self.callbacks: Any = (_fire,)

    def cancel(self) -> None:
        """Withdraw the timer; does nothing after it has fired."""
        if self.action is not None:
            self.action = None
            self._simulation._live_timers -= 1


def _fire(timer: Timer) -> None:
    simulation = timer._simulation
    simulation.now_ns = simulation._environment._now  # type: ignore[assignment]  # an int: every delay is
    action = timer.action
    if action is not None:
        timer.action = None
        simulation._live_timers -= 1
        action()


_LAST = EventPriority(2)  # behind everything else at the same instant; simpy's own are 0 and 1


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


def _run(simulation: Simulation, task: Task) -> None:
    simulation._thread_main(task)


def _wait_and_run(simulation: Simulation, task: Task) -> None:
    task.acquire()
    _first_function(task.name)(simulation, task)


@functools.lru_cache(maxsize=8192)
def _first_function(name: str) -> Callable[[Simulation, Task], None]:
    """The function of a task's thread, called as the task is, so that stacks of all threads tell whose is whose."""
    function: Callable[[Simulation, Task], None] = named(_run, name)
    return function


class Expiring(Protocol):
    """Something with a deadline. Registered with `Simulation.watch_deadline`."""

    deadline_ns: int | None

    def expire(self) -> None:
        """The deadline expired."""


class _Sleep:
    __slots__ = ("interruptible", "until_ns")

    def __init__(self, until_ns: int, *, interruptible: bool) -> None:
        self.until_ns = until_ns
        self.interruptible = interruptible

    def describe(self) -> str:
        return f"sleep until {self.until_ns / 1e9:.9f} s"

    def waits_for(self) -> Iterable[Task]:
        return ()


class Simulation:
    """Virtual time and the tasks that live in it.

    Example:
        >>> simulation = Simulation()
        >>> task = simulation.spawn(lambda: simulation.sleep(5), "sleeper")
        >>> simulation.run()
        >>> simulation.now_ns
        5
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        on_switch: Callable[[Any, Any], None] | None = None,
        stall_s: float = 30.0,
        progress: Callable[[int, int], None] | None = None,
        idle_turns: int = IDLE_TURNS,
    ) -> None:
        self._environment = simpy.Environment()
        self._step: Callable[[], None] = self._environment.step
        self.now_ns = (
            0  # virtual nanoseconds since the start of the world; only to be read. Hot: simpy's own clock, copied
        )
        self._ready: Policy = FifoPolicy() if policy is None else policy
        self.preempts = self._ready.preempts  # a thread may have to let others go first wherever it takes a lock
        self._on_switch = on_switch
        # Of a lock that is held while the world runs; whoever ends the world releases it.
        self._host_acquire, self._host_release, self._host_locked = methods_of_lock(_thread.allocate_lock())
        self._host_acquire()
        self.start_thread: Callable[..., int] = _thread.start_new_thread  # the layer above knows if ranks have another
        self._deadlines: dict[Expiring, None] = {}
        self._earliest_deadline: float = math.inf  # never later than the true one
        self._live_timers = 0
        self._alive = 0  # tasks that are neither done nor frozen
        self.turns = 0  # hand-overs and queue steps: the watchdog's pulse
        self.watched = True  # by the watchdog; not while a person debugs a task
        self._watchdog = Watchdog(self, stall_s, progress)
        self._idleness = Idleness(self, idle_turns)
        self._turns_to_look_at = idle_turns // 8  # when to see whether anything but polling has happened
        self.polls = 0  # events of the log that only say that someone slept, or asked in vain
        self.clock_reads = 0  # by tasks
        self._next_look_at_reads = _READS  # whether they do nothing else
        self._turns_at_reads = -1  # at the last look
        self._spin_ns = _FIRST_SPIN_NS
        self._closing = False
        self._stop: _Stop | None = None  # where the host wants to look, while it runs the world to there
        self._broken: BaseException | None = None  # what failed inside the kernel itself
        self._aborted: BaseException | None = None  # what ended the world from outside: see `abort`
        self._previous: Any = None  # context of the task that ran last
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.current_ident = 0  # thread of the current task; dispatchers compare with it
        self.events = EventLog()
        self.bus = Bus(log=self.events.add)
        self.deadlock: DeadlockError | None = None  # the first one found

    # -- time ----------------------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """`now_ns` for a task: whoever asks may have something to do at a certain time.

        Time stands still while a task runs, and a loop that only looks at the clock would never end. So when one task
        has read it thousands of times without a pause, it passes after all: a microsecond, then two, then four.
        """
        self.clock_reads += 1
        if self.clock_reads >= self._next_look_at_reads:
            self._look_at_reads()
        return self.now_ns

    def call_at(self, time_ns: int, action: Callable[[], None]) -> Timer:
        """Call `action` at virtual time `time_ns` (not before now), outside any task; it must not park."""
        timer = Timer(self, action)
        self._live_timers += 1
        now = self.now_ns
        self._environment.schedule(timer, delay=time_ns - now if time_ns > now else 0)  # type: ignore[arg-type]
        return timer

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
        """Watch it at another moment than before, or (None) no more."""
        self._deadlines.pop(thing, None)
        thing.deadline_ns = deadline_ns
        if deadline_ns is not None:
            self._deadlines[thing] = None
            self._earliest_deadline = min(self._earliest_deadline, deadline_ns)

    # -- tasks ---------------------------------------------------------------------------------------------------

    def spawn(self, function: Callable[[], None], name: str, context: Any = None) -> Task:
        """Add a task that calls `function`; it becomes runnable now. `context` is handed to the switch hook."""
        task = Task(self, name, function, context)
        spawner = self.current
        if spawner is not None and spawner.context is context and self.owns_this_thread():
            task.parent = spawner
        self.tasks.append(task)
        self._alive += 1
        self._ready.push(task)
        return task

    def begin(self, task: Task) -> int:
        """Make the thread of a task now and not at its first turn; its identifier."""
        task.started = True
        task.ident = self.start_thread(_wait_and_run, (self, task))
        return task.ident

    def offer(self) -> None:
        """Let the policy choose anew among those who can run, the running task included.

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
            task.acquire()
            self.current_ident = task.ident
            if task.doomed:
                raise TaskKilled
        task.state = _RUNNING

    def forget_task(self, task: Task) -> None:
        """Called on a task's own thread as its last step: nobody asks for it any more, at the world's end either."""
        self.tasks.remove(task)

    def park(self, wait: Wait, deadline_ns: int | None = None) -> bool:
        """Give the baton away until someone wakes the running task.

        Returns False if the deadline came first. A task may be woken early: whoever parks checks its condition again.

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
            task.acquire()
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

    def wake(self, task: Task) -> None:
        """Make a parked task runnable; does nothing to any other."""
        if task.state is _PARKED:
            if task.paused:
                task.woken_while_paused = True
            else:
                task.state = _READY
                self._ready.push(task)

    def sleep(self, duration_ns: int, *, interruptible: bool = False) -> None:
        """Park the running task for a span of virtual time; zero lets every other runnable task go first.

        An `interruptible` sleep ends early when somebody wakes the task.
        """
        task = self._running()
        until_ns = self.now_ns + max(0, duration_ns)
        wait = _Sleep(until_ns, interruptible=interruptible)
        task.sleep_timer = self.call_at(until_ns, lambda: self.wake(task))
        timer = task.sleep_timer
        while timer.action is not None:
            self.park(wait)
            if interruptible:
                timer.cancel()
        task.sleep_timer = None

    def kill(self, task: Task) -> None:
        """Stop a task for good: it never runs again, and its thread is unwound at teardown, every effect refused.

        A task that kills itself does not come back from this call.
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

    def keep_open(self) -> None:
        """The world is not over although every task may have ended: more will be spawned. Undone by `let_end`."""
        self._alive += 1

    def let_end(self) -> None:
        """Undo one `keep_open`."""
        self._alive -= 1

    def abort(self, error: BaseException) -> NoReturn:
        """End the world: `run` raises `error` as it is. Called by a task on behalf of whoever watches the world."""
        self._aborted = error
        self._closing = True
        self._running().doomed = True
        raise TaskKilled

    def check(self) -> Task:
        """The running task.

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

    def wrap_steps(self, wrapper: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """From now on make each step of the event queue by `wrapper` of it: timers' actions run inside."""
        self._step = wrapper(self._step)

    # -- the world -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until no task can go on. Afterwards call `close`.

        Raises:
            StallError: a task kept the baton for longer than the watchdog allows.
            LivelockError: tasks only sleep and ask, time and again, and nothing else has happened for very long.
            InternalError: the kernel broke.
            BaseException: what `abort` was given, or what `progress` raised.
        """
        first = self._choose()
        if first is not None:
            self._hand_over(first)
            self._watch()
        if self._aborted is not None:
            raise self._aborted
        if isinstance(self._broken, LivelockError):
            raise self._broken
        if self._broken is not None:
            raise InternalError(f"the kernel failed: {self._broken!r}") from self._broken

    def run_until(self, time_ns: int) -> bool:
        """Run everything up to virtual time `time_ns`, what happens at that instant included, and stop there.

        The calling thread may then look at the world and act on it, and go on with another `run_until` or `run`. The
        stop leaves no mark: the world goes on as if there had been none. Returns False if every task has ended, and
        time stands still at the last end; while tasks wait for what never comes, time still moves to `time_ns`.

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

    def close(self) -> list[str]:
        """Unwind every task that is left, so that no thread outlives the world; return the names of those that did.

        A thread does only if it blocks outside the simulation; it ends when it comes back from there.
        """
        self._closing = True
        leaked = []
        grace_s = _GRACE_S
        for task in self.tasks:
            if task.state is _DONE or not task.started:
                continue
            task.doomed = True
            if task is self.current and task.state is _RUNNING:
                continue  # it was abandoned by the watchdog, which has done what can be done
            self._hand_over(task)
            if not self._regain(task, grace_s, ended=True):
                leaked.append(task.name)
            if task.insisted:
                grace_s = _BETWEEN_S  # the others will be like that one
        leaked += [
            task.name for task in self.tasks if task.started and task.state is not _DONE and task.name not in leaked
        ]
        self._deadlines.clear()
        self._switch_context(None)
        self.current = None
        self.current_ident = 0
        if any(task.insisted for task in self.tasks):
            settle()
        for task in self.tasks:
            task.context = task.waiting = None  # these and the task refer to each other
        return leaked

    def forget(self, error: BaseException) -> None:
        """In a forked child, which has none of the threads: there are no tasks, and a `run` that goes on ends."""
        self._aborted = error
        self._closing = True
        self.tasks.clear()
        self.current = None
        self.current_ident = 0
        self._watchdog.stop()
        if self._host_locked():
            self._host_release()

    # -- inside --------------------------------------------------------------------------------------------------

    def _look_at_reads(self) -> None:
        spinning = self.turns == self._turns_at_reads
        task = self.current
        if spinning and task is not None and task.state is _RUNNING and not task.doomed and self.owns_this_thread():
            self.sleep(self._spin_ns)
            self._spin_ns = min(2 * self._spin_ns, _LONGEST_SPIN_NS)
        elif not spinning:
            self._spin_ns = _FIRST_SPIN_NS
        self._turns_at_reads = self.turns
        self._next_look_at_reads = self.clock_reads + _READS

    def timers(self) -> Iterator[tuple[int, Timer]]:
        """What is certain, with its time: the timers that were not withdrawn."""
        for time_ns, _, _, timer in self._environment._queue:
            if isinstance(timer, Timer) and timer.action is not None:
                yield time_ns, timer  # type: ignore[misc]  # an int: every delay is

    def deadlines(self) -> list[tuple[int, Expiring]]:
        """What happens if nothing else does, with its time, unless it was withdrawn."""
        return [(thing.deadline_ns, thing) for thing in self._deadlines if thing.deadline_ns is not None]

    def _running(self) -> Task:
        task = self.current
        if task is None or _thread.get_ident() != self.current_ident:
            raise SimdistError(
                "this thread belongs to no simulated rank: it was started outside the world, and simulated operations "
                "are for the ranks and the threads that they start"
            )
        return task

    def _choose(self) -> Task | None:
        """The next task to run, stepping the queue as far as needed; None when the world is over."""
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
                upcoming = self._environment.peek() if self._live_timers else math.inf
                certain = self._earliest_deadline > upcoming or self._arm_deadline(upcoming)
                if self._stop is None and not (certain and self._live_timers):
                    return None  # nothing will ever happen again
                self.turns += 1
                if self.turns > self._turns_to_look_at:
                    self._turns_to_look_at = self._idleness.look()
                self._step()
                if self._stop is not None and self._stop.reached:
                    return None
        except BaseException as error:  # in a timer's action: a bug, and no task's fault
            self._broken = error
            return None

    def _arm_deadline(self, upcoming: float) -> bool:
        """Turn the earliest deadline into a timer if it is due before `upcoming`; False if there is nothing at all."""
        if not self._live_timers:
            self._look_for_deadlock()
        earliest = min((thing.deadline_ns for thing in self._deadlines if thing.deadline_ns is not None), default=None)
        self._earliest_deadline = math.inf if earliest is None else earliest
        if earliest is None:
            return bool(self._live_timers) or self._at_rest()
        if earliest <= upcoming:
            self.call_at(earliest, self._expire)
        return True

    def _at_rest(self) -> bool:
        self._look_for_deadlock()
        return False

    def _expire(self) -> None:
        now = self.now_ns
        due = [thing for thing in self._deadlines if thing.deadline_ns is not None and thing.deadline_ns <= now]
        for thing in due:
            # Expiring one thing may settle another.
            if thing in self._deadlines:
                del self._deadlines[thing]
                thing.expire()
        self._earliest_deadline = -1  # unknown: look again

    def _look_for_deadlock(self) -> None:
        if self.deadlock is None:
            self.deadlock = describe_deadlock(self)
            if self.deadlock is not None:
                self.bus.record(deadlocked(self.now_ns, -1, self.deadlock.cycle, self.deadlock.report))

    def _switch_context(self, context: Any) -> None:
        if self._on_switch is not None and context is not self._previous:
            self._on_switch(self._previous, context)
            self._previous = context

    def _hand_over(self, task: Task | None) -> None:
        self.turns += 1
        if task is None:
            if self._host_locked():  # a task that ends long after it was given up finds it open
                self._host_release()
            return
        self.current = task
        if self._on_switch is not None and task.context is not self._previous:
            self._on_switch(self._previous, task.context)
            self._previous = task.context
        if task.started:
            task.release()
        else:
            task.started = True
            self.start_thread(_first_function(task.name), (self, task))

    def _thread_main(self, task: Task) -> None:
        task.ident = self.current_ident = _thread.get_ident()
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
            # A thread not made by `threading` leaves a dummy behind there if anyone asked for the current thread.
            threading._active.pop(task.ident, None)  # type: ignore[attr-defined]
            if task.state is not _FROZEN:
                self._alive -= 1
            task.state = _DONE
            self._hand_over(None if self._closing else self._choose())

    def _watch(self) -> None:
        try:
            self._watchdog.wait()
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
        self._regain(task, 0.2)

    def _regain(self, task: Task, grace_s: float, *, ended: bool = False) -> bool:
        """Wait until a doomed task gives the baton back, or is over; insist if not. False if that is in vain."""
        if self._comes_back(task, grace_s, ended=ended):
            return True
        with without_collector():
            # A collection that has begun, and what it calls, come to their end.
            if self._comes_back(task, _COLLECTION_S, ended=ended):
                return True
            used_s = processor_seconds(task)
            for attempt in range(_ATTEMPTS):
                insist(task)
                if self._comes_back(task, _BETWEEN_S, ended=ended):
                    return True
                if attempt == _FEW_ATTEMPTS and processor_seconds(task) == used_s:
                    return False  # it is blocked, and will find the exception when it comes back
        return False

    def _comes_back(self, task: Task, within_s: float, *, ended: bool) -> bool:
        acquired = self._host_acquire(timeout=within_s)
        if (
            task.ident and task.ident not in sys._current_frames()
        ):  # perhaps the exception struck when it was on its very last steps
            task.state = _DONE
        # Somebody who was given up before may have released the lock.
        return task.state is _DONE or (acquired and not ended)
