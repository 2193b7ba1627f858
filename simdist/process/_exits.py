"""Ways to leave, and what a process may do to another: `os._exit`, `os.kill`, signals, `atexit`, forks."""

from __future__ import annotations

import atexit
import functools
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from simdist.errors import UnsupportedError
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime

__all__ = ["install"]

_F = TypeVar("_F", bound=Callable[..., Any])


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


def _exit(original: Callable[[int], Any]) -> Callable[[int], Any]:
    @functools.wraps(original)
    def _exit(status: int) -> Any:
        process = current_process()
        if process is None:
            original(status)
        else:
            process.simulation.check()
            process.exit(status)

    return _exit


def _abort(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def abort() -> Any:
        process = current_process()
        if process is None:
            original()
        else:
            process.simulation.check()
            process.kill(signal.SIGABRT)

    return abort


def _kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def kill(pid: int, number: int) -> None:
        runtime = current_runtime()
        if runtime is None:
            original(pid, number)
            return
        runtime.simulation.check()
        process = current_process()
        if process is not None and pid == process.parent_pid:
            if number != 0:
                raise UnsupportedError(f"rank {process.rank}: signals to the launcher are not simulated")
            return
        target = runtime.processes.get(pid)
        if target is None or not target.running:
            raise ProcessLookupError(3, "No such process")
        if number not in signal.valid_signals() and number != 0:
            raise OSError(22, "Invalid argument")
        if number == signal.SIGINT and target is current_process():
            raise KeyboardInterrupt
        target.signal(number)
        if number == signal.SIGSTOP and target is current_process():
            runtime.simulation.sleep(0)  # the running task stops where it parks

    return kill


def _raise_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def raise_signal(number: int) -> None:
        process = current_process()
        if process is None:
            original(number)
        else:
            os.kill(process.pid, number)

    return raise_signal


def _signal(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_handler(number: int, handler: Any) -> Any:
        process = current_process()
        if process is None:
            return original(number, handler)
        if process.simulation.current is not process.main:
            raise ValueError("signal only works in main thread of the main interpreter")
        if callable(handler) and handler is not signal.default_int_handler:
            if getattr(getattr(handler, "func", None), "__module__", "") == "asyncio.runners":
                # Of `asyncio.run`, which goes without one where that can't be.
                raise ValueError("simdist does not deliver signals to Python handlers yet")
            raise UnsupportedError("simdist does not deliver signals to Python handlers yet; signals act by default")
        before = signal.SIG_IGN if number in process.ignored else signal.SIG_DFL
        if handler == signal.SIG_IGN:
            process.ignored.add(int(number))
        else:
            process.ignored.discard(int(number))
        return before

    return set_handler


def _atexit_register(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(function: _F, *args: Any, **kwargs: Any) -> _F:
        process = current_process()
        if process is None:
            original(function, *args, **kwargs)
        else:
            process.at_exit.append((function, args, kwargs))
        return function

    return register


def _atexit_unregister(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unregister(function: Callable[..., Any]) -> None:
        process = current_process()
        if process is None:
            original(function)
        else:
            process.at_exit = [entry for entry in process.at_exit if entry[0] != function]

    return unregister


def _refused(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            process = current_process()
            if process is None:
                return original(*args, **kwargs)
            raise UnsupportedError(
                f"rank {process.rank}: {what} is not supported inside a simulated rank yet; "
                "it would run outside the simulation, in real time"
            )

        return refuse

    return wrap


_REPLACEMENTS = tuple(
    Replacement(owner, name, make)
    for owner, name, make in (
        (os, "getpid", _getpid),
        (os, "getppid", _getppid),
        (os, "_exit", _exit),
        (os, "kill", _kill),
        (os, "abort", _abort),
        (signal, "raise_signal", _raise_signal),
        (signal, "signal", _signal),
        (atexit, "register", _atexit_register),
        (atexit, "unregister", _atexit_unregister),
        (os, "fork", _refused("os.fork (and with it DataLoader workers and multiprocessing)")),
        (os, "forkpty", _refused("os.forkpty")),
        (os, "execv", _refused("os.execv, which would replace the whole world,")),
        (os, "execve", _refused("os.execve, which would replace the whole world,")),
        (BaseProcess, "start", _refused("starting a process with multiprocessing")),
    )
    if hasattr(owner, name)
)
