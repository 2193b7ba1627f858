"""Threads of a rank: tasks of its process.

`_thread.start_new_thread` (from Python 3.13 on `start_joinable_thread`) starts a task when a task calls it, and
`threading.Thread` does all the rest itself. What `threading` keeps once per interpreter is kept per process here: the
main thread, the list of threads, the numbers in names, the functions to call before the interpreter ends. At its end a
process does what the interpreter does: it asks idle workers of pools to end, waits for threads that are not daemons,
calls the functions of `atexit`, and then stops the threads that still run.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread as pools
import functools
import itertools
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from simdist.inside.python import HANDLE_OF_THREAD
from simdist.kernel import Task, TaskKilled, TaskState
from simdist.process._events import ThreadBegan, report_hand_over
from simdist.process._lateness import due_at
from simdist.process._process import SimProcess, process_of
from simdist.process._runtime import Extra, Runtime, current_process, current_runtime
from simdist.process._stdio import report_thread_error
from simdist.process.threads import _between, _questions
from simdist.process.threads._locks import give_back, nanoseconds
from simdist.process.threads._thread_slots import HOOK_SLOT, POOL_MODULES, POOLS_SLOT, PROCESS_POOLS_SLOT
from simdist.process.threads._tracing import introduce, traced_by_debugger

__all__ = ["JOINABLE", "Handle", "Joining", "Threads", "begin", "forget", "shut_down", "threads_of", "waits_of_threads"]

_module: Any = threading  # has what the stubs leave out
JOINABLE = hasattr(_thread, "start_joinable_thread")
_SUBMITS_NOTHING = ("simdist.", "multiprocessing.")  # modules whose functions are called at a process's exit
_REPLACED: Extra[bool] = Extra("what only concerns several threads")
_begun: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # by ranks of the present world


class _MainThread(_module._MainThread):  # type: ignore[misc]
    """The main thread of a simulated process, which a debugger of the host shows by the name of its rank."""

    @property
    def name(self) -> str:
        """Its own name for the process itself, the task's name for the host."""
        return self._name if current_runtime() is not None else self.of

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)


_MainThread.__qualname__, _MainThread.__module__ = "_MainThread", "threading"


class Threads:
    """What `threading` knows of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.objects: dict[Task, threading.Thread] = {}  # the `Thread` of each task that has one
        # A lock that is held as long as the task runs, or its handle.
        self.ends: dict[Task, _thread.LockType | Handle] = {}
        self.number = itertools.count(1).__next__  # in names of threads
        self.pool_number = itertools.count().__next__  # in names of pools' threads
        self.loop_task_number = itertools.count(1).__next__  # in names of asyncio's tasks
        self.calls: list[Callable[[], object]] = []  # before threads are waited for at the end
        self.shutting_down = False
        self._main: threading.Thread | None = None

    @property
    def main(self) -> threading.Thread:
        """The `Thread` of the task that the process began with."""
        if self._main is None:
            task = self._process.tasks[0]
            # Not `_MainThread()`: that would be the interpreter's.
            self._main = thread = object.__new__(_MainThread)
            thread.of = task.name
            self.objects[task] = thread
            _module._active[task.ident] = thread
            threading.Thread.__init__(thread, name="MainThread", daemon=False)
            thread._ident = task.ident
            if hasattr(thread, "_native_id"):
                thread._native_id = threading.get_native_id()
            if JOINABLE:
                self.ends[task] = handle = Handle(self, task)
                setattr(thread, HANDLE_OF_THREAD, handle)
            else:
                self.ends[task] = thread._tstate_lock = threading.Lock()
                thread._tstate_lock.acquire()
            thread._started.set()
        return self._main

    def forget(self) -> None:
        """Let go of all of them: the process is gone."""
        self.objects.clear()
        self.ends.clear()
        self.calls.clear()
        self._main = None

    def alive(self) -> list[threading.Thread]:
        """The `Thread` of every task that has one, in the order in which they began."""
        found = [self.main]
        for task in self._process.tasks[1:]:
            thread = self.objects.get(task) or _module._active.get(task.ident)
            if thread is not None and task.ident in _module._active:
                found.append(thread)
        return found


def threads_of(process: SimProcess) -> Threads:
    """What `threading` knows of a process; made at the first call."""
    if process.threads is None:
        process.threads = Threads(process)
    return process.threads


class Joining:
    """What a task waits on until another task ends."""

    __slots__ = ("_name", "_task", "timed")
    interruptible = True  # by signals

    def __init__(self, task: Task, name: str, *, timed: bool = False) -> None:
        self._task = task
        self._name = name
        self.timed = timed

    def describe(self) -> str:
        """The thread by its name."""
        return f"join of thread {self._name!r}"

    def waits_for(self) -> Iterable[Task]:
        """The task, unless the wait has a timeout."""
        return () if self.timed else (self._task,)


class Handle:
    """Stands in for Python's own handle of a thread (3.13 and later)."""

    def __init__(self, threads: Threads, task: Task) -> None:
        self._threads = threads
        self._task = task
        self._done = False

    @property
    def ident(self) -> int:
        """The identifier of the thread."""
        return self._task.ident

    def is_done(self) -> bool:
        """True when it has ended."""
        return self._done

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or `timeout` passed."""
        simulation = self._task.simulation
        limited = timeout is not None and timeout >= 0
        if limited and not timeout:
            simulation.check()
            return  # like a lock that is only tried
        deadline_ns = due_at(process_of(self._task), nanoseconds(timeout or 0)) if limited else None
        thread = self._threads.objects.get(self._task)
        wait = Joining(self._task, getattr(thread, "name", ""), timed=deadline_ns is not None)
        process = current_process()
        if process is not None and process is self._task.context:
            while not self._done and simulation.park(wait, deadline_ns):
                process.drain()
            if self._done and simulation.current is not None:
                report_hand_over(simulation.current, self, gives=False)

    def _set_done(self) -> None:
        report_hand_over(self._task, self, gives=True)
        self._done = True
        if not self._task.doomed:
            process_of(self._task).wake()


# -- begin and end ---------------------------------------------------------------------------------------------------


def begin(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], *, daemon: bool
) -> Task:
    """Start a task of the calling process that runs `function`."""
    runtime = current_runtime()
    assert runtime is not None
    parent = runtime.simulation.check()
    process = process_of(parent)
    process.check_finalizing("create new thread")
    started = getattr(function, "original_func", function)  # pydevd may have wrapped it
    thread: Any = getattr(started, "__self__", None)
    is_thread = isinstance(thread, threading.Thread)
    if is_thread:
        daemon = thread.daemon
    threads = threads_of(process)
    runtime.separate(HOOK_SLOT)
    if _REPLACED not in runtime.extras:
        runtime.extras[_REPLACED] = True
        runtime.patches.redirect((*_between.REPLACEMENTS, *_questions.REPLACEMENTS))
    name = thread.name if is_thread else getattr(started, "__name__", "thread")
    task = process.spawn(functools.partial(_run, runtime, function, args, kwargs), _free_name(process, name))
    task.daemon = daemon
    bus = runtime.simulation.bus
    if bus.heard and bus.hears(ThreadBegan):
        bus.report(ThreadBegan(parent, task))
    if is_thread:
        threads.objects[task] = thread
        _begun.add(thread)
        if JOINABLE:
            threads.ends[task] = handle = Handle(threads, task)
            setattr(thread, HANDLE_OF_THREAD, handle)
    try:
        runtime.simulation.begin(task)
    except RuntimeError:
        process.tasks.remove(task)
        runtime.simulation.kill(task)
        task.started = False
        raise
    if is_thread and traced_by_debugger():  # it warns of threads without a number
        thread._ident = task.ident
    return task


def _free_name(process: SimProcess, name: str) -> str:
    """A name for reports, unique in the process: threads may share a name."""
    main = process.tasks[0].name
    taken = {task.name for task in process.tasks}
    names = itertools.chain(
        (f"{main}, thread {name!r}",), (f"{main}, thread {name!r} #{n}" for n in itertools.count(2))
    )
    return next(each for each in names if each not in taken)


def _run(
    runtime: Runtime, function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    task = runtime.simulation.current
    assert task is not None
    process = process_of(task)
    for begins in runtime.thread_begins:
        begins(process)
    if task in threads_of(process).objects:
        introduce(lambda: threads_of(process).objects[task])
    try:
        function(*args, **kwargs)
    except (SystemExit, TaskKilled):
        pass
    except BaseException as error:
        report_thread_error(function, error)
    finally:
        if not task.doomed and process.running:
            _ended(process, task)


def _ended(process: SimProcess, task: Task) -> None:
    threads = process.threads
    assert threads is not None
    end = threads.ends.pop(task, None)
    threads.objects.pop(task, None)
    process.tasks.remove(task)
    process.simulation.forget_task(task)
    _report_end(end)
    process.wake()  # tasks may wait for the end of all threads


def _report_end(end: _thread.LockType | Handle | None) -> None:
    if isinstance(end, Handle):
        end._set_done()
    elif end is not None:
        give_back(end)


def shut_down(process: SimProcess) -> None:
    """Do what the interpreter does after the main thread's end, before `atexit`. Called by the process's main task."""
    threads = process.threads
    runtime = current_runtime()
    assert runtime is not None
    if threads is None:
        _end_pools(runtime, process)
        return
    threads.shutting_down = True
    if len(process.tasks) > 1:
        process.simulation.sleep(0)  # a real interpreter takes its time to end, and daemons get theirs
    while threads.calls:
        _call(threads.calls.pop())
    _end_pools(runtime, process)
    _report_end(threads.ends.pop(process.tasks[0], None))
    while remaining := [task for task in process.tasks[1:] if not task.daemon]:
        thread = threads.objects.get(remaining[0])
        process.simulation.park(Joining(remaining[0], getattr(thread, "name", remaining[0].name)))
        process.drain()


def _call(function: Callable[[], object]) -> None:
    try:
        function()
    except TaskKilled:
        raise
    except BaseException as error:
        sys.stderr.write(f"Exception ignored in: {threading!r}\n")
        traceback.print_exception(error)


def _end_pools(runtime: Runtime, process: SimProcess) -> None:
    """`_python_exit` of both modules of `concurrent.futures`, for the threads of this process only.

    A process without such threads that runs no code of its own at its exit can submit nothing, and is spared the slots.
    """
    state: Any = pools
    modules = [getattr(function, "__module__", None) or "" for function, _, _ in process.at_exit]
    goes_on = not all(module.startswith(_SUBMITS_NOTHING) for module in modules)
    own = [] if process.threads is None else list(process.threads.objects.values())
    workers = [(thread, queue) for thread, queue in list(state._threads_queues.items()) if thread in own]
    if workers or goes_on:
        runtime.separate(POOLS_SLOT)
        with state._global_shutdown_lock:
            state._shutdown = True
        for _, queue in workers:
            queue.put(None)
        for thread, _ in workers:
            thread.join()
    of_processes: Any = sys.modules.get(POOL_MODULES[1])
    if of_processes is None:
        return
    managers = [(thread, wakeup) for thread, wakeup in list(of_processes._threads_wakeups.items()) if thread in own]
    if managers or goes_on:
        runtime.separate(PROCESS_POOLS_SLOT)
        of_processes._global_shutdown = True
        for _, wakeup in managers:
            wakeup.wakeup()
        for thread, _ in managers:
            thread.join()


def waits_of_threads(process: SimProcess) -> str:
    """What the threads other than the main one wait for, in words; "" if there are none."""
    said = [
        f"{task.name.partition(', ')[2]} in {task.waiting.describe()}"
        for task in process.tasks[1:]
        if task.state is TaskState.PARKED and task.waiting is not None
    ]
    return "; ".join(said)


def forget() -> None:
    """At the end of the world, forget threads that never got a turn."""
    begun: Any = _begun
    if begun.data:  # iterating over a weak set takes a dozen calls
        for thread in list(_begun):
            _module._limbo.pop(thread, None)  # killed before its first turn
        _begun.clear()
