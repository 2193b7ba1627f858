"""Waiting for what a rank started, by its pid: `os.waitpid` and its kin, for simulated children and for programs.

A rank has no other children than these. For those that torch starts for itself, mostly compilers, a wait by their pid
asks the operating system. All functions but `waitpid` are replaced when a rank starts its first child.

In doubt: the only usage of a program that `os.wait4` reports is its virtual time; a program's end can't be polled for
by a descriptor, for that would show the real end.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from simdist.errors import UnsupportedError
from simdist.process._process import SimProcess
from simdist.process._programs import Program
from simdist.process._runtime import Extra, Make, Patches, Replacement, Runtime, current_process, on_ranks
from simdist.process.children._child_processes import wait_for_child

if TYPE_CHECKING:
    from resource import struct_rusage as Usage

    _Ended = tuple[int, int]  # the pid and the status
    _EndedAfter = tuple[int, int, Usage]

__all__ = ["install", "replace_kin"]

_KIN: Extra[bool] = Extra("kin of waitpid")


def install(patches: Patches) -> None:
    """Let ranks wait for what they started."""
    patches.redirect(_WAITPID)


def replace_kin(runtime: Runtime) -> None:
    """Replace the other functions, from now on; called by a rank that starts something, any number of times."""
    if _KIN not in runtime.extras:
        runtime.extras[_KIN] = True
        runtime.patches.redirect(_OTHERS)


def _programs_of(process: SimProcess, pid: int) -> list[Program]:
    if pid > 0:
        return [process.programs[pid]] if pid in process.programs else []
    return list(process.programs.values())


def _wait_for(process: SimProcess, pid: int, options: int, *, keep: bool = False) -> tuple[int, int] | None:
    """`os.waitpid`; None if the rank has started nothing that fits. With `keep` a later wait finds the same again."""
    if pid < -1:
        raise UnsupportedError(
            f"rank {process.rank}: to wait for a group of processes is not simulated; os.waitpid(-1, ...) waits for "
            "whatever the rank has started"
        )
    while True:
        programs = _programs_of(process, pid)
        if process.children:
            found = wait_for_child(pid, options | os.WNOHANG if programs else options, keep=keep)
            if found is not None and found[0]:
                return found
            if not programs:
                return found
        if not programs:
            return None
        if options & os.WNOHANG:
            programs = [program for program in programs if not program.runs_on]
            if not programs:
                return 0, 0
        simulation = process.simulation
        now_ns = simulation.read_clock() if options & os.WNOHANG else simulation.now_ns
        first = min(programs, key=lambda program: program.ends_ns)
        if now_ns >= first.ends_ns:
            end = first.really_ends if keep else first.end
            return first.pid, end(patient=not options & os.WNOHANG)
        if options & os.WNOHANG:
            return 0, 0
        first.park()


def _no_child() -> ChildProcessError:
    return ChildProcessError(errno.ECHILD, os.strerror(errno.ECHILD))


def _waitpid(original: Callable[[int, int], _Ended]) -> Callable[[int, int], _Ended]:
    @functools.wraps(original)
    def waitpid(pid: int, options: int, /) -> _Ended:
        process = current_process()
        if process is None:
            return original(pid, options)
        found = _wait_for(process, pid, options)
        if found is not None:
            return found
        if pid > 0:
            return original(pid, options)
        raise _no_child()

    return waitpid


def _wait() -> _Ended:
    return os.waitpid(-1, 0)


def _usage(seconds: float) -> Usage:
    from resource import struct_rusage

    return struct_rusage((seconds, 0.0, *(0,) * (struct_rusage.n_sequence_fields - 2)))


def _wait4(original: Callable[[int, int], _EndedAfter]) -> Callable[[int, int], _EndedAfter]:
    @functools.wraps(original)
    def wait4(pid: int, options: int) -> _EndedAfter:
        process = current_process()
        if process is None:
            return original(pid, options)
        ends = {program.pid: program for program in _programs_of(process, pid)}
        ended, status = os.waitpid(pid, options)
        program = ends.get(ended)
        taken_ns = 0 if program is None else program.ends_ns - program.begins_ns
        return ended, status, _usage(taken_ns / 1e9)

    return wait4


def _wait3(original: Callable[[int], _EndedAfter]) -> Callable[[int], _EndedAfter]:
    @functools.wraps(original)
    def wait3(options: int) -> _EndedAfter:
        return original(options) if current_process() is None else os.wait4(-1, options)

    return wait3


def _waitid(
    original: Callable[[int, int, int], os.waitid_result | None],
) -> Callable[[int, int, int], os.waitid_result | None]:
    @functools.wraps(original)
    def waitid(kind: int, number: int, options: int, /) -> os.waitid_result | None:
        process = current_process()
        if process is None:
            return original(kind, number, options)
        if kind not in (os.P_PID, os.P_ALL) or options & ~(os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise UnsupportedError(
                f"rank {process.rank}: of os.waitid P_PID and P_ALL are simulated, with WEXITED, WNOHANG and WNOWAIT; "
                "os.waitpid waits for whatever a rank has started"
            )
        if not options & os.WEXITED:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        pid = number if kind == os.P_PID else -1
        found = _wait_for(process, pid, options & os.WNOHANG, keep=bool(options & os.WNOWAIT))
        if found is None:
            if pid > 0:
                return original(kind, number, options)
            raise _no_child()
        ended, status = found
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        how = os.CLD_EXITED if code >= 0 else os.CLD_KILLED
        return os.waitid_result((ended, os.getuid(), signal.SIGCHLD, abs(code), how))

    return waitid


def _pidfd_open(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def pidfd_open(pid: int, flags: int = 0) -> int:
        process = current_process()
        if process is None:
            return original(pid, flags)
        # As on a system that does not have it: callers have another way then.
        raise OSError(
            errno.ENOSYS, f"rank {process.rank}: os.pidfd_open is not simulated; os.waitpid and subprocess are"
        )

    return pidfd_open


_WAITPID = (Replacement(os, "waitpid", _waitpid),) if hasattr(os, "waitpid") else ()
_MADE: tuple[tuple[str, Make], ...] = (
    ("wait", on_ranks(_wait)),
    ("wait3", _wait3),
    ("wait4", _wait4),
    ("waitid", _waitid),
    ("pidfd_open", _pidfd_open),
)
_OTHERS = tuple(Replacement(os, name, make) for name, make in _MADE if hasattr(os, name))
