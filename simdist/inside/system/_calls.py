"""Calls of the C library that Python does not offer: for namespaces, for parents and their processes, for inotify."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

__all__ = ["ask_parent_signal", "become_subreaper", "c_library", "call", "watch_opens"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def c_library() -> ctypes.CDLL:
    """The C library of this process, whose calls keep their error numbers."""
    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes) -> int:
    """Call a function that returns a number, negative if it fails.

    Raises:
        OSError: it failed.
    """
    result = int(getattr(c_library(), name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def ask_parent_signal(number: int) -> None:
    """Have the kernel send a signal to this process when the thread that started it ends (on Linux only)."""
    if sys.platform == "linux":
        c_library().prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent ends (on Linux only)."""
    if sys.platform == "linux":
        c_library().prctl(_PR_SET_CHILD_SUBREAPER, 1)


def watch_opens(queue: int, folder: str, events: int) -> tuple[int, int]:
    """Have inotify report `events` of a folder; with `queue` -1 to a new queue. Returns the queue and the watch.

    Raises:
        OSError: the system has no inotify, or no more queues or watches.
    """
    if sys.platform != "linux":
        raise OSError("only Linux reports who opens a file")
    if queue < 0:
        queue = call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
    return queue, call("inotify_add_watch", queue, os.fsencode(folder), events)
