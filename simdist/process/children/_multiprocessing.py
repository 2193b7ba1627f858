"""`multiprocessing` on a rank: its state per process, and what it asks of the operating system.

Its Python code keeps the current process, its children, a registry of finalizers and a start method in module globals.
They are one slot, from the moment at which a rank makes a process, a pipe or a lock. Processes start, end and are
waited for in `_child_processes`; pipes are those of `_pipes`; locks are real ones on which tasks wait (`_locks`).

The helper process that cleans up semaphores and shared memory after a crash is never started: what ranks leave is
unlinked when their world ends (`_shared_memory`). A manager's server is a child like any other, and `_listeners` lets
its clients in.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import os
import shutil
import sys
import weakref
from collections.abc import Callable
from multiprocessing import (
    connection,
    context,
    forkserver,
    managers,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    reduction,
    resource_sharer,
    spawn,
    synchronize,
    util,
)
from multiprocessing import process as processes
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from simdist.inside.python import original as real
from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Make, Patches, Replacement, current_process, current_runtime, on_ranks
from simdist.process._slots import Slot
from simdist.process._when_imported import when_imported
from simdist.process.children._child_processes import HandedEnd, launch_forked, launch_spawned, pipes_here
from simdist.process.children._listeners import accepting, connecting
from simdist.process.children._waits import replace_kin
from simdist.process.threads._lock_methods import share_between_processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.heap import Arena
    from multiprocessing.pool import Pool
    from types import ModuleType

    _Connections = tuple[connection.Connection, connection.Connection]
    _Launch = Callable[[popen_fork.Popen, processes.BaseProcess], None]
    _LockState = tuple[object, ...]
    _State = tuple[
        processes.BaseProcess,  # the current one
        processes.BaseProcess | None,  # its parent
        Iterator[int],  # numbers in names
        object,  # children
        dict[object, object],  # finalizers
        weakref.WeakValueDictionary[object, object],  # what is called after a fork
        bool,  # it is ending
        object,  # the start method's context
        tuple[object, object],  # modules of the fork server, and the executable
        object,  # where shared values get their memory
    ]

__all__ = ["install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_processes: Any = processes  # have what the stubs leave out
_util: Any = util
_PROCESSES, _UTIL, _SPAWN = vars(processes), vars(util), vars(spawn)  # as in `Slots`: it happens at each hand-over
_HEAP, _POOL = "multiprocessing.heap", "multiprocessing.pool"
_context: ModuleType = context
_forkserver: ModuleType = forkserver
_spawn: Any = spawn


class _MainProcess(processes.BaseProcess):
    """What `multiprocessing.current_process()` is in a process that it has not started."""

    def __init__(self, authkey: bytes) -> None:
        self._identity = ()
        self._name = "MainProcess"
        self._parent_pid = None
        self._popen = None
        self._closed = False
        self._config = {"authkey": _processes.AuthenticationString(authkey), "semprefix": "/mp"}

    def close(self) -> None:
        """Does nothing."""


class _Children(dict[processes.BaseProcess, None]):
    """The children of a process by age: at its end they are terminated in this order; a set goes by addresses."""

    def add(self, child: processes.BaseProcess) -> None:
        self[child] = None

    def discard(self, child: processes.BaseProcess) -> None:
        self.pop(child, None)


def _begin() -> None:
    """For `_close_stdin`: `BaseProcess._bootstrap` calls it next when it has put a set there; stdin is the world's."""
    _PROCESSES["_children"] = _Children()


def _save() -> _State:
    return (
        _processes._current_process,
        _processes._parent_process,
        _processes._process_counter,
        _processes._children,
        dict(_util._finalizer_registry),
        _util._afterfork_registry,
        _util._exiting,
        _context._default_context._actual_context,
        (_forkserver._forkserver._preload_modules, _spawn._python_exe),
        _heap_of(sys.modules.get(_HEAP)),
    )


def _heap_of(module: ModuleType | None) -> object:
    """Where shared values get their memory; None if none was needed yet."""
    return None if module is None else module.BufferWrapper._heap


def _load(state: _State) -> None:
    (
        _PROCESSES["_current_process"],
        _PROCESSES["_parent_process"],
        _PROCESSES["_process_counter"],
        _PROCESSES["_children"],
        finalizers,
        _UTIL["_afterfork_registry"],
        _UTIL["_exiting"],
        _context._default_context._actual_context,
        (_forkserver._forkserver._preload_modules, _SPAWN["_python_exe"]),
        heap,
    ) = state
    registry = _util._finalizer_registry  # refilled in place: its functions keep the dictionary itself
    registry.clear()
    registry.update(finalizers)
    module = sys.modules.get(_HEAP)
    if module is not None:
        module.BufferWrapper._heap = heap or module.Heap()


# The context of the start method that a module which all ranks share has chosen while one rank imported it.
_chosen_by_import: object = None


def _fresh(process: SimProcess, host: _State) -> _State:
    authkey = hashlib.sha256(f"{process.rank} {process.pid}".encode()).digest()
    none: weakref.WeakValueDictionary[object, object] = weakref.WeakValueDictionary()
    state: tuple[Any, ...] = _MainProcess(authkey), None, itertools.count(1), _Children(), {}, none, False
    return *state, _chosen_by_import, host[-2], None


def _forked(state: _State) -> _State:
    current, parent, counter, *_, chosen, starting, _ = state
    none: weakref.WeakValueDictionary[object, object] = weakref.WeakValueDictionary()
    return current, parent, counter, _Children(), {}, none, False, chosen, starting, None


_USERS: Extra[dict[SimProcess, None]] = Extra("users of multiprocessing")
_SEMAPHORES: Extra[dict[object, object]] = Extra("semaphores")
_SLOT: Slot[_State] = Slot("multiprocessing", _save, _load, _fresh, _forked)


def _separate() -> SimProcess | None:
    """The calling process, with a state of its own."""
    runtime = current_runtime()
    process = current_process()
    if runtime is None or process is None:
        return None
    if _USERS not in runtime.extras:
        runtime.extras[_USERS] = {}
        runtime.separate(_SLOT)
        runtime.patches.redirect(_FROM_THEN_ON)
        replace_kin(runtime)
        runtime.patches.wrap(resource_sharer, "DupFd", _duplicate)
        runtime.patches.wrap(connection, "SocketListener", accepting)
        runtime.patches.wrap(connection, "SocketClient", connecting)
        runtime.patches.replace(synchronize.SemLock, "_rand", _NAMES)
        runtime.patches.wrap(_util, "get_temp_dir", _removing)
        runtime.patches.wrap(importlib.import_module(_HEAP).Arena, "__init__", _closing)
        runtime.patches.wrap(importlib.import_module(_POOL).Pool, "__init__", _ending)
    known = runtime.extras[_USERS]
    if process not in known:
        known[process] = None
        if process.parent is None:  # a child of `multiprocessing` calls it itself
            process.at_exit.insert(0, (_util._exit_function, (), {}))
    return process


def _separating(original: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(original)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        _separate()
        return original(*args, **kwargs)

    return call


def _choosing(original: Callable[..., None]) -> Callable[..., None]:
    """For `set_start_method`: what a shared module chooses, it chooses for all."""

    @functools.wraps(original)
    def set_start_method(self: context.DefaultContext, method: str | None, force: bool = False) -> None:
        _separate()
        original(self, method, force)
        runtime = current_runtime()
        if runtime is not None and imported_for_all(sys._getframe(1)):
            global _chosen_by_import
            _chosen_by_import = vars(self)["_actual_context"]
            runtime.slots.change_all(_SLOT, lambda: original(self, method, True), host=False)

    return set_start_method


def _asking(original: Callable[_P, _T]) -> Callable[_P, _T]:
    """For `get_start_method` and `get_context`: the process begins with what a shared module has chosen."""

    @functools.wraps(original)
    def get(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _chosen_by_import is not None:
            _separate()
        return original(*args, **kwargs)

    return get


def _removing(original: Callable[[], str]) -> Callable[[], str]:
    """For `get_temp_dir`: a folder that it makes goes with the world, even if the process was killed."""

    @functools.wraps(original)
    def find() -> str:
        is_new = _processes.current_process()._config.get("tempdir") is None  # a program may have set its own
        folder = original()
        runtime = current_runtime()
        if is_new and runtime is not None and current_process() is not None:
            runtime.patches.on_undo(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        return folder

    return find


def _closing(original: Callable[..., None]) -> Callable[..., None]:
    """For shared memory: its file closes when the last user lets go of it, not with the interpreter's process."""

    @functools.wraps(original)
    def init(arena: Arena, *args: object, **kwargs: object) -> None:
        original(arena, *args, **kwargs)
        if current_process() is None:
            return
        registry = _util._finalizer_registry
        newest = next(reversed(registry), None)
        if newest is not None and getattr(registry[newest], "_args", None) == (arena.fd,):
            del registry[newest]  # forgotten with the process, before it is due
        weakref.finalize(arena, real(os.close), arena.fd).atexit = False

    return init


def _ending(original: Callable[..., None]) -> Callable[..., None]:
    """For pools: one that still exists at the world's end has nothing left to terminate when it is collected."""

    @functools.wraps(original)
    def init(pool: Pool, *args: object, **kwargs: object) -> None:
        runtime = current_runtime()
        if runtime is not None and current_process() is not None:
            runtime.patches.on_undo(functools.partial(_left_to_host, weakref.ref(pool)))
        original(pool, *args, **kwargs)

    return init


def _left_to_host(reference: weakref.ref[Pool]) -> None:
    pool: Any = reference()
    if pool is not None:
        pool._state = sys.modules[_POOL].TERMINATE


# -- processes -------------------------------------------------------------------------------------------------------


def _launching(launch: _Launch) -> Callable[[_Launch], _Launch]:
    def make(original: _Launch) -> _Launch:
        @functools.wraps(original)
        def _launch(popen: popen_fork.Popen, process_obj: processes.BaseProcess) -> None:
            process = _separate()
            if process is None:
                original(popen, process_obj)
                return
            launch(popen, process_obj)

        return _launch

    return make


def _duplicate_for_child(
    original: Callable[[popen_fork.Popen, int], int],
) -> Callable[[popen_fork.Popen, int], int]:
    @functools.wraps(original)
    def duplicate_for_child(popen: Any, fd: int) -> int:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(popen, fd)
        pipes = pipes_here(runtime)
        end = pipes.number_in(process, fd)
        copied = pipes.copy(fd if end is None else end, process)
        popen._fds.append(copied)
        return copied

    return duplicate_for_child


def _detach(wrapper: Any) -> int:
    return int(wrapper.ind)


def _poll(popen: popen_fork.Popen, flag: int = os.WNOHANG) -> int | None:
    return popen_fork.Popen.poll(popen, flag)


# -- pipes and locks -------------------------------------------------------------------------------------------------


def _pipe(original: Callable[[bool], _Connections]) -> Callable[..., _Connections]:
    @functools.wraps(original)
    def Pipe(duplex: bool = True) -> _Connections:
        process = _separate()
        if process is None:
            return original(duplex)
        runtime = current_runtime()
        assert runtime is not None
        return pipes_here(runtime).connections(process, duplex=bool(duplex))

    return Pipe


def _init_lock(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: object, **kwargs: object) -> None:
        process = _separate()
        original(self, *args, **kwargs)
        if process is not None:
            share_between_processes(self._semlock, process.oldest)

    return init


def _get_lock_state(
    original: Callable[[synchronize.SemLock], _LockState],
) -> Callable[[synchronize.SemLock], _LockState]:
    @functools.wraps(original)
    def getstate(self: Any) -> _LockState:
        state = original(self)
        runtime = current_runtime()
        if runtime is not None:
            runtime.extras.setdefault(_SEMAPHORES, {})[state[0]] = self._semlock
        return state

    return getstate


def _set_lock_state(
    original: Callable[[synchronize.SemLock, _LockState], None],
) -> Callable[[synchronize.SemLock, _LockState], None]:
    @functools.wraps(original)
    def setstate(self: Any, state: _LockState) -> None:
        runtime = current_runtime()
        known = None if runtime is None else runtime.extras.setdefault(_SEMAPHORES, {}).get(state[0])
        if known is None:
            original(self, state)
        else:
            self._semlock = known
            self._is_fork_ctx = False
            self._make_methods()

    return setstate


def _rebuild_connection(
    original: Callable[..., connection.Connection],
) -> Callable[..., connection.Connection]:
    @functools.wraps(original)
    def rebuild(*args: object) -> connection.Connection:
        made = original(*args)
        runtime = current_runtime()
        if runtime is not None:
            pipes_here(runtime).hold(made)
        return made

    return rebuild


def _duplicate(original: Callable[[int], object]) -> Callable[[int], object]:
    @functools.wraps(original, updated=())
    def DupFd(fd: int) -> object:
        return original(fd) if current_process() is None else HandedEnd(fd)

    return DupFd


_Made = tuple[tuple[object, str, Make], ...]


def _replacements(made: _Made) -> tuple[Replacement, ...]:
    return tuple(Replacement(owner, name, make) for owner, name, make in made if hasattr(owner, name))


# A rank's first use of `multiprocessing` is one of these; most worlds never need the others.
_BEGINNINGS = _replacements(
    (
        (processes.BaseProcess, "__init__", _separating),
        (context.DefaultContext, "set_start_method", _choosing),
        (context.DefaultContext, "get_start_method", _asking),
        (context.DefaultContext, "get_context", _asking),
        (forkserver.ForkServer, "set_forkserver_preload", _separating),
        (spawn, "set_executable", _separating),
        (processes, "active_children", _separating),
        (util.Finalize, "__init__", _separating),
        (connection, "Pipe", _pipe),
        (managers.BaseManager, "__init__", _separating),
        (connection, "Client", _separating),
        (connection.Listener, "__init__", _separating),
        (synchronize.SemLock, "__init__", _init_lock),
        (reduction, "DupFd", _separating),
    )
)
_FROM_THEN_ON = _replacements(
    (
        (popen_fork.Popen, "_launch", _launching(launch_forked)),
        (popen_spawn_posix.Popen, "_launch", _launching(launch_spawned)),
        (popen_spawn_posix.Popen, "duplicate_for_child", _duplicate_for_child),
        (popen_forkserver.Popen, "_launch", _launching(launch_spawned)),
        (popen_forkserver.Popen, "duplicate_for_child", _duplicate_for_child),
        (popen_forkserver.Popen, "poll", on_ranks(_poll)),
        (vars(popen_forkserver)["_DupFd"], "detach", on_ranks(_detach)),
        (connection, "rebuild_connection", _rebuild_connection),
        (synchronize.SemLock, "__getstate__", _get_lock_state),
        (synchronize.SemLock, "__setstate__", _set_lock_state),
        (util, "_close_stdin", on_ranks(_begin)),
    )
)


class _Names:
    """Names of locks that no other program on this machine has. Ranks never see them; no random generator is used."""

    def __iter__(self) -> _Names:
        return self

    def __next__(self) -> str:
        return real(os.urandom)(8).hex()


_NAMES = _Names()


def install(patches: Patches) -> None:
    """Let ranks start processes."""
    patches.redirect(_BEGINNINGS)


@functools.cache
def _of_heap() -> tuple[Replacement, ...]:
    # Separate before it takes memory: later, the memory would be that of another heap.
    return _replacements(((sys.modules[_HEAP].BufferWrapper, "__init__", _separating),))


when_imported(_HEAP, lambda patches: patches.redirect(_of_heap()), remembered=True)
