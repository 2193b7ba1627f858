"""What the system knows of a process by its number, such as its group and niceness; and what only root may change.

All ranks are one process of the system, so these are kept here for each. A rank is the leader of a group and a session
of its own, as a worker of torchrun is; its children begin with its group. Signals to a group reach its processes, and
the programs that these have started without a session of their own.

Changes that no process of a rank could keep for itself (user, groups, root folder, the system's clock) are refused as
the system refuses them to all but root: they would be the host's.

In doubt: niceness and scheduling are only noted. A number that belongs to no process of the world is the system's.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Make, Patches, Replacement, current_process, current_runtime, on_ranks

__all__ = ["install"]

_T = TypeVar("_T")
_NICEST, _LEAST_NICE = 19, -20
_OF_ROOT = (
    *("setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setregid", "setresgid", "setgroups"),
    *("initgroups", "chroot", "unshare", "setns"),
)


@dataclass(slots=True)
class _Identity:
    group: int
    session: int
    niceness: int
    policy: int = 0  # SCHED_OTHER
    priority: int = 0


_IDENTITIES: Extra[dict[SimProcess, _Identity]] = Extra("what the system knows of processes")


def _identity_of(process: SimProcess) -> _Identity:
    runtime = current_runtime()
    assert runtime is not None
    known = runtime.extras.setdefault(_IDENTITIES, {})
    if process not in known:
        parent = process.parent
        if parent is None:
            known[process] = _Identity(process.pid, process.pid, original(os.getpriority)(os.PRIO_PROCESS, 0))
        else:
            known[process] = replace(_identity_of(parent))
    return known[process]


def _members_of(group: int) -> list[SimProcess]:
    """Return the processes of a group that have not ended."""
    runtime = current_runtime()
    processes = [] if runtime is None else [each for each in runtime.processes.values() if each.running]
    return [each for each in processes if _identity_of(each).group == group]


def _found(pid: object) -> _Identity | None:
    """What is known of the process that a rank means by `pid`; None if the number is the system's, or no number."""
    runtime, process = current_runtime(), current_process()
    if runtime is None or process is None or not isinstance(pid, int):
        return None
    target = process if pid == 0 else runtime.processes.get(pid)
    if target is None:
        return None
    if not target.running:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return _identity_of(target)


def _denied(text: str = "") -> PermissionError:
    return PermissionError(errno.EPERM, os.strerror(errno.EPERM) + text)


def _reading(read: Callable[[_Identity], _T]) -> Make:
    """For a function that reads something of the process with a number."""

    def make(original: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(original)
        def get(pid: object = 0, /) -> _T:
            found = _found(pid)
            return original(pid) if found is None else read(found)

        return get

    return make


def _getpgrp() -> int:
    process = current_process()
    assert process is not None
    return _identity_of(process).group


def _setsid() -> None:
    process = current_process()
    assert process is not None
    own = _identity_of(process)
    if own.group == process.pid:
        raise _denied()
    own.group = own.session = process.pid


def _setpgid(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def setpgid(pid: int, pgrp: int, /) -> None:
        own = _found(pid)
        if own is None:
            original(pid, pgrp)
            return
        number = pid or os.getpid()
        if own.session == number or (pgrp not in (0, number) and not _members_of(pgrp)):
            raise _denied()
        own.group = pgrp or number

    return setpgid


def _nice(original: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(original)
    def nice(increment: int, /) -> int:
        own = _found(0)
        if own is None or not isinstance(increment, int):
            return original(increment)
        own.niceness = max(_LEAST_NICE, min(_NICEST, own.niceness + increment))
        return own.niceness

    return nice


def _getpriority(original: Callable[[int, int], int]) -> Callable[[int, int], int]:
    @functools.wraps(original)
    def getpriority(which: int, who: int) -> int:
        found = _found(who) if which == os.PRIO_PROCESS or who == 0 else None
        return original(which, who) if found is None else found.niceness

    return getpriority


def _setpriority(original: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    @functools.wraps(original)
    def setpriority(which: int, who: int, priority: int) -> None:
        found = _found(who) if which == os.PRIO_PROCESS or who == 0 else None
        if found is None or not isinstance(priority, int):
            original(which, who, priority)
        else:
            found.niceness = max(_LEAST_NICE, min(_NICEST, priority))

    return setpriority


def _sched_setscheduler(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def sched_setscheduler(pid: int, policy: int, param: Any, /) -> None:
        found = _found(pid)
        if found is None or not isinstance(param, os.sched_param):
            original(pid, policy, param)
        else:
            found.policy, found.priority = policy, param.sched_priority

    return sched_setscheduler


def _sched_setparam(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def sched_setparam(pid: int, param: Any, /) -> None:
        found = _found(pid)
        if found is None or not isinstance(param, os.sched_param):
            original(pid, param)
        else:
            found.priority = param.sched_priority

    return sched_setparam


def _killpg(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def killpg(group: int, number: int) -> None:
        process = current_process()
        if process is None:
            original(group, number)
            return
        members = _members_of(group or os.getpgrp())
        for program in [each for member in members for each in member.programs.values()]:
            if os.getpgid(program.popen.pid) != program.popen.pid:
                program.signal(number)
        for member in sorted(members, key=lambda each: each is process):
            os.kill(member.pid, number)
        if members:
            return
        found = process.programs.get(group)
        if found is None or os.getpgid(group) != group:
            raise ProcessLookupError(3, "No such process")
        found.signal(number)
        with contextlib.suppress(ProcessLookupError):
            original(group, number)

    return killpg


def _refused(original: Callable[..., object]) -> Callable[..., object]:
    name = original.__name__

    @functools.wraps(original)
    def change(*args: object) -> object:
        process = current_process()
        if process is None:
            return original(*args)
        own = {os.getuid(), os.geteuid()} if "uid" in name else {os.getgid(), os.getegid()}
        if name.endswith("id") and args and len(own) == 1 and {*args} <= own | {-1}:
            return None  # it has these already
        raise _denied(f": rank {process.rank} would change the host's process or machine ({name})")

    return change


_MADE: dict[str, Make] = {
    "getpgrp": on_ranks(_getpgrp),
    "getpgid": _reading(lambda found: found.group),
    "getsid": _reading(lambda found: found.session),
    "setsid": on_ranks(_setsid),
    "setpgid": _setpgid,
    "setpgrp": on_ranks(lambda: os.setpgid(0, 0)),
    "killpg": _killpg,
    "nice": _nice,
    "getpriority": _getpriority,
    "setpriority": _setpriority,
    "sched_getscheduler": _reading(lambda found: found.policy),
    "sched_getparam": _reading(lambda found: os.sched_param(found.priority)),
    "sched_setscheduler": _sched_setscheduler,
    "sched_setparam": _sched_setparam,
    **dict.fromkeys(_OF_ROOT, _refused),
}


def _replacements() -> Iterator[Replacement]:
    for name, make in _MADE.items():
        if hasattr(os, name):
            yield Replacement(os, name, make)
    for name in ("clock_settime", "clock_settime_ns"):
        if hasattr(time, name):
            yield Replacement(time, name, _refused)


_REPLACEMENTS = tuple(_replacements())


def install(patches: Patches) -> None:
    """Keep for each process what the system would keep for one."""
    patches.redirect(_REPLACEMENTS)
