"""Processes that a rank starts with `multiprocessing`: simulated ones, on the rank's host.

The Python code of `multiprocessing` runs as it is; this module answers what it asks of the operating system. A child
has a pid, an environment, arguments, generators, handlers, threads and an exit code of its own; what it prints is its
rank's output. A *forked* child goes on with its parent's generators and modules. It has copies of what it is handed
(`_copiers`) and of what the program's modules, classes and functions hold (`_fork_copies`). A *spawned* child, or one
of a fork server, begins afresh and is handed what pickle carries over; with modules per rank it imports them for
itself.

A child whose parent has ended is an orphan, with pid 1 as its parent, as on a machine; after thirty virtual seconds it
is killed, so that a run ends.

In doubt: a forked child shares with its parent the objects that installed libraries hold, except their tables
(`_library_tables`), and objects that can't be copied; under a real fork it would have copies of these too.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import random
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection, context, reduction, spawn, util
from multiprocessing import process as processes
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from simdist.kernel import Task, TaskKilled
from simdist.process._process import SimProcess, process_of
from simdist.process._runtime import Extra, Runtime, current_runtime
from simdist.process._signal_masks import SignalMasks
from simdist.process.modules._attributes import AttributeViews
from simdist.process.modules._fork_copies import ForkCopies
from simdist.process.modules._library_tables import LibraryTables
from simdist.process.stdlib._environ import forked_environ
from simdist.process.stdlib._pipes import Pipes
from simdist.process.threads._threads import shut_down
from simdist.process.threads._tracing import trace_main_thread
from simdist.records import child_started

__all__ = ["HandedEnd", "adopt_connections", "hand_connections", "launch_forked", "launch_spawned", "pipes_here"]
__all__ += ["separate_attributes", "wait_for_child"]

_FIRST_PID = 20_000
_START_NS = 1_000_000  # until a new process runs its first line; its parent starts its next ones meanwhile
_T = TypeVar("_T")
_PIDS: Extra[Iterator[int]] = Extra("pids of children")
_HANDED: Extra[dict[int, tuple[int, bool]]] = Extra("descriptors on their way")
_module: Any = processes  # has what the stubs leave out


class _End:
    """What a task waits on until a child ends."""

    __slots__ = ("_children", "_name")
    interruptible = True
    timed = False

    def __init__(self, name: str, children: list[SimProcess]) -> None:
        self._name = name
        self._children = children

    def describe(self) -> str:
        return f"join of process {self._name}"

    def waits_for(self) -> list[Task]:
        return [child.main for child in self._children if child.main is not None]


def pipes_here(runtime: Runtime) -> Pipes:
    """The pipes of the world, made when a rank first asks for one."""
    found = runtime.extras.get(Pipes)
    if found is None:
        runtime.notice_writes()
        found = runtime.extras[Pipes] = Pipes()
        runtime.patches.on_undo(found.close_all)
    return found


def _here() -> tuple[Runtime, SimProcess]:
    runtime = current_runtime()
    assert runtime is not None
    task = runtime.simulation.check()
    process = process_of(task)
    return runtime, process


# -- begin -----------------------------------------------------------------------------------------------------------


def launch_forked(popen: Any, process_obj: Any) -> None:
    """Start a child as `Popen._launch` does under "fork"."""
    runtime, parent = _here()
    parent.check_finalizing("fork")
    pipes = pipes_here(runtime)
    parent_read, child_write = pipes.make(parent)
    child_read, parent_write = pipes.make(parent)
    child = _new_child(runtime, parent, forked=True)
    pipes.inherit(parent, child)
    own = {number: pipes.number_in(child, number) for number in (parent_read, parent_write, child_read)}
    copies = runtime.extras.get(ForkCopies)
    if copies is None:
        copies = runtime.extras[ForkCopies] = ForkCopies(runtime)
    mine, variables = copies.fork(child, process_obj, popen, lambda end: pipes.own_connection(end, child))
    for number in (parent_read, parent_write):
        pipes.close(own[number])  # type: ignore[arg-type]

    def main() -> int:
        random.seed()  # as Python itself does in a forked child
        for variable, value in variables:
            variable.set(value)
        code: int = mine._bootstrap(parent_sentinel=own[child_read])
        return code

    _begin(runtime, parent, child, process_obj, main)
    pipes.close(child_write)
    pipes.close(child_read)
    _finish(popen, process_obj, child, parent_read, parent_write)


def launch_spawned(popen: Any, process_obj: Any) -> None:
    """Start a child as `Popen._launch` does under "spawn" and "forkserver".

    Raises:
        PicklingError, AttributeError, TypeError: as pickle raises for the process object.
    """
    runtime, parent = _here()
    pipes = pipes_here(runtime)
    popen._fds = []
    file = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reported = spawn.get_preparation_data(process_obj._name)
        reduction.dump(process_obj, file)
    except BaseException:
        for end in popen._fds:
            os.close(end)
        raise
    finally:
        context.set_spawning_popen(None)
    parent_read, child_write = pipes.make(parent)
    child_read, parent_write = pipes.make(parent)
    child = _new_child(runtime, parent, forked=False)
    for end in (*popen._fds, child_write, child_read):
        pipes.give(end, child)
    del popen._fds[:]

    def main() -> int:
        current = _module.current_process()
        current._inheriting = True
        try:
            _prepare(runtime, reported)
            mine = reduction.pickle.loads(file.getbuffer())  # type: ignore[attr-defined]
        finally:
            del current._inheriting
        code: int = mine._bootstrap(child_read)
        child.run_at_exit(_print_exception)
        return code

    _begin(runtime, parent, child, process_obj, main)
    _finish(popen, process_obj, child, parent_read, parent_write)


def _prepare(runtime: Runtime, reported: dict[str, Any]) -> None:
    """Do what `multiprocessing.spawn.prepare` does, but leave `sys.path` alone without isolation: all share it then."""
    current = _module.current_process()
    current.name = reported["name"]
    current.authkey = reported["authkey"]
    if reported.get("log_to_stderr"):
        util.log_to_stderr()
    if "log_level" in reported:
        util.get_logger().setLevel(reported["log_level"])
    sys.argv = list(reported["sys_argv"])
    context._default_context.set_start_method(reported["start_method"], force=True)
    if reported["dir"] != str(Path.cwd()):
        os.chdir(reported["dir"])
    if runtime.isolation is not None:
        sys.path = list(reported["sys_path"])
        runtime.isolation.import_main()


def _new_child(runtime: Runtime, parent: SimProcess, *, forked: bool) -> SimProcess:
    runtime.collect_in_rounds()
    pids = runtime.extras.setdefault(_PIDS, itertools.count(_FIRST_PID))
    child = SimProcess(
        runtime.simulation,
        rank=parent.rank,
        place=parent.place,
        pid=next(pids),
        life=parent.life,
        host=parent.host,
        parent_pid=parent.pid,
        epoch_ns=parent.epoch_ns,
        environ=dict(parent.environ),
        argv=list(sys.argv),
        echo=parent.echo,
    )
    child.parent = parent
    child.cores = parent.cores
    if parent.masks is not None:
        child.masks = SignalMasks(child, parent.masks.mask_of(runtime.simulation.current))
    if runtime.isolation is None:
        _attributes_in(runtime, child, forked=forked)
    child.stdout, child.stderr = parent.stdout, parent.stderr
    child.laid_over = {number: os.dup(each) for number, each in parent.laid_over.items()}
    child.lineage = f"{parent.lineage} child {len(parent.children)}"
    random_states = runtime.slots.random
    child.random_states = random_states.save() if forked else random_states.fresh(child.rank, child.life, child.lineage)
    if forked:
        child.streams = sys.stdout, sys.stderr, sys.excepthook
        child.environ_object = forked_environ(os.environ)
        child.handlers = dict(parent.handlers)
        child.warned = set(parent.warned)
    else:
        ignored = {number: each for number, each in parent.handlers.items() if each == signal.SIG_IGN}
        child.handlers.update(ignored)
    runtime.slots.inherit(child, forked=forked)
    if runtime.isolation is not None and forked:
        runtime.isolation.inherit(parent, child)
    tables = runtime.extras.get(LibraryTables)
    if tables is None:
        tables = runtime.extras[LibraryTables] = LibraryTables(runtime, functools.partial(_is_kept_apart, runtime))
    tables.begin(child)
    for begins in runtime.child_begins:
        begins(parent, child, forked)
    return child


def _attributes_in(runtime: Runtime, child: SimProcess, *, forked: bool) -> None:
    """Keep a child's attributes apart: without isolation ranks share them, but no real process does with its child."""
    views = runtime.extras.get(AttributeViews)
    if views is None:
        views = _views(runtime)
    if forked:
        views.inherit(child)


def _is_kept_apart(runtime: Runtime, owner: ModuleType, name: str) -> bool:
    views = runtime.isolation or runtime.extras.get(AttributeViews)
    return views is not None and views.keeps_apart(owner, name)


def _views(runtime: Runtime, *, of_all: bool = False) -> AttributeViews:
    views = runtime.extras[AttributeViews] = AttributeViews(runtime, None, of_all=of_all)
    runtime.patches.on_undo(views.restore)
    views.install(runtime.patches)
    runtime.slots.add(lambda leaving, entering: views.switch(entering))
    return views


# -- a launcher ------------------------------------------------------------------------------------------------------


def separate_attributes(runtime: Runtime) -> None:
    """In a world without isolation, keep apart from now on what each process sets on modules and classes."""
    _views(runtime, of_all=True)


def adopt_connections(process: SimProcess, made: Iterable[connection.Connection]) -> None:
    """Give a process of the world the ends of pipes that the host made, until the world ends."""
    runtime = current_runtime()
    assert runtime is not None
    pipes_here(runtime).adopt(process, made)


def hand_connections(values: _T, process: SimProcess) -> _T:
    """Return values as a starting process gets them: with ends of pipes of its own for those that were adopted."""
    runtime = current_runtime()
    assert runtime is not None
    pipes = pipes_here(runtime)

    def own(value: Any) -> Any:
        if isinstance(value, connection.Connection):
            return pipes.copied_connection(value, process)
        if type(value) in (list, tuple):
            return type(value)(map(own, value))
        if type(value) is dict:
            return {key: own(each) for key, each in value.items()}
        return value

    handed: _T = own(values)
    return handed


def _begin(
    runtime: Runtime,
    parent: SimProcess,
    child: SimProcess,
    process_obj: processes.BaseProcess,
    function: Callable[[], int],
) -> None:
    runtime.processes[child.pid] = child
    parent.children[child.pid] = child
    parent.end_listeners[child.on_parent_end] = None
    simulation = runtime.simulation
    assert simulation.current is not None
    rank = parent.oldest.tasks[0].name
    name = f"{rank}, process {process_obj.name!r} (pid {child.pid})"
    task = child.spawn(lambda: _main(runtime, child, function), name)
    task.daemon = bool(process_obj.daemon)
    simulation.bus.record(child_started(simulation.now_ns, child.rank, child.pid, process_obj.name))


def _left_to_host(made: Callable[[], Any], process: Callable[[], Any], child: SimProcess) -> None:
    """Mark a child as ended after the world, for finalizers and other code that still has its object."""
    popen, process_obj = made(), process()
    if popen is not None and popen.returncode is None:
        popen.returncode = -signal.SIGKILL if child.exit_code is None else child.exit_code
    if process_obj is not None:
        process_obj._parent_pid = os.getpid()


def _finish(popen: Any, process_obj: Any, child: SimProcess, parent_read: int, parent_write: int) -> None:
    popen.pid = child.pid
    popen.simulated = child
    # With weak references: a program that drops the object of an ended child has its pipes closed.
    child.on_forget = functools.partial(_left_to_host, weakref.ref(popen), weakref.ref(process_obj), child)
    popen.sentinel = parent_read
    popen.finalizer = util.Finalize(popen, vars(util)["close_fds"], (parent_read, parent_write))


def _main(runtime: Runtime, child: SimProcess, function: Callable[[], int]) -> None:
    """Run a child from its start to its end."""
    for begins in runtime.thread_begins:
        begins(child)
    code = 1
    trace_main_thread()
    try:
        runtime.simulation.sleep(_START_NS)
        code = function()
    except TaskKilled:
        raise
    except BaseException:
        task = runtime.simulation.current
        if task is not None and task.doomed:  # `multiprocessing` failed to report `TaskKilled`, as to a closed stream
            raise TaskKilled from None
        # A spawned child that could not read what it was handed, before `multiprocessing` could handle the error.
        sys.excepthook(*sys.exc_info())
        shut_down(child)
    child.end("exited", code & 0xFF)


def _print_exception(child: SimProcess, error: BaseException) -> None:
    traceback.print_exception(error)


# -- end -------------------------------------------------------------------------------------------------------------


def wait_for_child(pid: int, options: int, *, keep: bool = False) -> tuple[int, int] | None:
    """`os.waitpid` for simulated children; None if no child fits. With `keep` a later wait finds the child again.

    Raises:
        TaskKilled: as `Simulation.park`.
    """
    runtime, process = _here()
    simulation = runtime.simulation
    while True:
        awaited = [child for number, child in process.children.items() if pid in (number, -1, 0)]
        if not awaited:
            return None
        ended = next((child for child in awaited if not child.running), None)
        if ended is not None:
            if not keep:
                del process.children[ended.pid]
            code = ended.exit_code or 0
            return ended.pid, code << 8 if code >= 0 else -code
        if options & os.WNOHANG:
            simulation.ask()
            if all(child.running for child in awaited):
                return 0, 0
            continue
        names = ", ".join(str(child.pid) for child in awaited)
        simulation.park(_End(names, awaited))
        process.drain()


# -- descriptors in messages -----------------------------------------------------------------------------------------


class HandedEnd:
    """Stands in for `resource_sharer.DupFd`: a descriptor that goes to another process inside a message."""

    def __init__(self, fd: int) -> None:
        runtime, process = _here()
        pipes = pipes_here(runtime)
        handed = runtime.extras.get(_HANDED)
        if handed is None:
            handed = runtime.extras[_HANDED] = {}
            runtime.patches.on_undo(functools.partial(_drop, handed))
        end = pipes.number_in(process, fd)
        self._key = max(handed, default=0) + 1
        handed[self._key] = pipes.copy(fd if end is None else end, process.oldest), end is not None

    def detach(self) -> int:
        """Get the descriptor. This should only be called once."""
        runtime, process = _here()
        fd = runtime.extras[_HANDED].pop(self._key)[0]
        pipes_here(runtime).give(fd, process)
        return fd


def _drop(handed: dict[int, tuple[int, bool]]) -> None:
    for fd, is_pipe in handed.values():
        if not is_pipe:  # pipes close with their process
            os.close(fd)
    handed.clear()
