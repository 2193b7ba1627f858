"""How a process ends, and what it may do to another: `os._exit`, `os.kill`, signals, `atexit`, forks.

A process may choose its cores; its children begin with its choice. In doubt: the choice of one thread is that of its
process here, and a real program that it starts does not have it.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from simdist.inside.python import original
from simdist.process._imports import imported_for_all
from simdist.process._refusals import refused
from simdist.process._runtime import Make, Patches, Replacement, current_process, current_runtime

__all__ = ["install"]

_F = TypeVar("_F", bound=Callable[..., object])


def install(patches: Patches) -> None:
    """Replace what ends a process, names it, or starts another."""
    patches.redirect(_REPLACEMENTS)


def _getpid(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def getpid() -> int:
        process = current_process()
        return original() if process is None else process.pid

    return getpid


def _getppid(original: Callable[[], int]) -> Callable[[], int]:
    @functools.wraps(original)
    def getppid() -> int:
        process = current_process()
        return original() if process is None else process.parent_pid

    return getppid


def _sched_getaffinity(original: Callable[[int], set[int]]) -> Callable[[int], set[int]]:
    @functools.wraps(original)
    def sched_getaffinity(pid: int, /) -> set[int]:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None or pid not in (0, process.pid) or runtime.cores is None:
            return original(pid)
        return set(runtime.cores if process.cores is None else process.cores)

    return sched_getaffinity


def _sched_setaffinity(change: Callable[[int, Iterable[int]], None]) -> Callable[[int, Iterable[int]], None]:
    @functools.wraps(change)
    def sched_setaffinity(pid: int, mask: Iterable[int], /) -> None:
        process = current_process()
        if process is None or pid not in (0, process.pid):
            change(pid, mask)
            return
        # The system says what is wrong with the cores, and which of them there are. The thread stays on its core.
        before = original(os.sched_getaffinity)(0)
        change(0, mask)
        try:
            process.cores = original(os.sched_getaffinity)(0)
        finally:
            change(0, before)

    return sched_setaffinity


def _exit(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def _exit(status: int) -> None:
        process = current_process()
        if process is None:
            original(status)
        else:
            process.simulation.check()
            process.exit(status)

    return _exit


def _abort(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def abort() -> None:
        process = current_process()
        if process is None:
            original()
        else:
            process.simulation.check()
            process.kill(signal.SIGABRT)

    return abort


def _atexit_register(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def register(function: _F, *args: object, **kwargs: object) -> _F:
        process = current_process()
        # An exit handler of a module that all ranks share must not run before all have ended.
        if process is None or imported_for_all(sys._getframe(1)):
            original(function, *args, **kwargs)
        else:
            process.at_exit.append((function, args, kwargs))
        return function

    return register


def _atexit_unregister(
    original: Callable[[Callable[..., object]], None],
) -> Callable[[Callable[..., object]], None]:
    @functools.wraps(original)
    def unregister(function: Callable[..., object]) -> None:
        process = current_process()
        if process is None:
            original(function)
        else:
            process.at_exit = [entry for entry in process.at_exit if entry[0] != function]

    return unregister


def _forking(what: str) -> Make:
    return refused(
        f"{what} would copy the whole world, with all its ranks; multiprocessing.Process starts a simulated child, and "
        "subprocess a program"
    )


def _replacing(name: str) -> Make:
    return refused(
        f"os.{name} would replace the whole world, with all its ranks; subprocess.run starts the program, and "
        "sys.exit with its returncode ends the rank as the program would"
    )


_MADE: tuple[tuple[object, str, Make], ...] = (
    (os, "getpid", _getpid),
    (os, "getppid", _getppid),
    (os, "sched_getaffinity", _sched_getaffinity),
    (os, "sched_setaffinity", _sched_setaffinity),
    (os, "_exit", _exit),
    (os, "abort", _abort),
    (atexit, "register", _atexit_register),
    (atexit, "unregister", _atexit_unregister),
    (os, "fork", _forking("os.fork")),
    (os, "forkpty", _forking("os.forkpty (pty.fork and pty.spawn, too)")),
    (os, "execv", _replacing("execv")),
    (os, "execve", _replacing("execve")),
)
_REPLACEMENTS = tuple(Replacement(owner, name, make) for owner, name, make in _MADE if hasattr(owner, name))
