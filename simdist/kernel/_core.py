"""One core and batch scheduling for the threads of a world.

Only one of them runs at a time, and waking a thread on another core costs more than on the same one. Under the normal
policy the kernel lets a woken thread preempt the one that wakes it, only to find the interpreter lock taken and to go
back to sleep; SCHED_BATCH has no wake-up preemption, which halves a hand-off (measured: 8.4 to 3.7 µs). Both settings
belong to a thread, are inherited by the threads it starts, need no privilege, and are restored at the end.

Two simulations at the same time must not share a core: a process that uses a core binds an abstract UNIX socket named
after it, which leaves no file behind and vanishes with the process. When all cores are taken, nothing is pinned. The
first choice is the core on which the thread runs. Any other core may have a process that is between two of its worlds
and so claims no core: both would share that core while this one is idle (two processes that ran worlds for half of
their time got 70 % of two cores when all took the lowest that was free, and 97 % this way).
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import os
import sys
from collections.abc import Iterator

from simdist.inside.system import call

__all__ = ["one_core", "why_not_one_core"]

_NEEDED = ("sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler", "SCHED_BATCH")


@functools.cache
def why_not_one_core() -> str:
    """Why threads cannot be kept on one core under batch scheduling, empty if they can. Tried for real, once."""
    if sys.platform != "linux":
        return f"they are Linux's, and this is {sys.platform}"
    missing = [name for name in _NEEDED if not hasattr(os, name)]
    if missing:
        return f"this Python has no os.{missing[0]}"
    try:
        call("sched_getcpu")
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        scheduler = os.sched_getscheduler(0)
        if scheduler == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            os.sched_setscheduler(0, scheduler, os.sched_param(0))
    except OSError as error:  # a container may refuse them
        return f"the system refuses them: {error}"
    return ""


@contextlib.contextmanager
def one_core() -> Iterator[int | None]:
    """Keep the calling thread, and every thread started from it meanwhile, on one core; yield its number.

    Yields None, and changes nothing, where the system has no such thing or where every core is taken.
    """
    if why_not_one_core():
        yield None
        return
    before = os.sched_getaffinity(0)
    core, claim = _claim(sorted(before))
    scheduler = os.sched_getscheduler(0)
    batch = scheduler == os.SCHED_OTHER
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        if batch:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        yield core
    finally:
        if batch:
            os.sched_setscheduler(0, scheduler, os.sched_param(0))
        if core is not None:
            os.sched_setaffinity(0, before)
        if claim is not None:
            claim.close()


def _claim(cores: list[int]) -> tuple[int | None, _socket.socket | None]:
    if len(cores) == 1:
        return cores[0], None  # nothing to choose
    here = call("sched_getcpu")
    for core in sorted(cores, key=lambda core: core != here):
        # The type in C: what forbids a test to open sockets replaces `socket.socket`.
        claim = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0simdist.core.{core}")
        except OSError:
            claim.close()
            continue
        return core, claim
    return None, None
