"""Ending the thread of a task that does not want to end.

A task that is doomed gets `TaskKilled` from everything it does. Code that catches every exception, in a loop, goes on
nevertheless. Python can raise an exception in another thread, between two instructions; such a loop catches that as
well, unless it is just in its handler or on its way back to the beginning. So the exception that is raised here turns
on tracing in the thread when it is made, and from then on every line of the user's code raises another: none gets
further than to the handler's end, where no `try` of the same loop protects it.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from simdist.frames import is_ours
from simdist.inside.python import raise_in_thread
from simdist.kernel._task import Task, TaskKilled

__all__ = ["calm", "insist", "settle", "without_collector"]


class _Insisted(TaskKilled):
    """Python makes it on the thread in which it is raised."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        sys.settrace(_raise_again)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not is_ours(frame):
                frame.f_trace = _raise_again
            frame = frame.f_back


def _raise_again(frame: FrameType, event: str, argument: Any) -> Any:
    if is_ours(frame):
        return None
    raise_in_thread(_thread.get_ident(), _Insisted)
    return _raise_again


def insist(task: Task) -> None:
    """Raise an exception in the thread of a doomed task that it can't swallow for long. May be repeated."""
    if not task.calm:
        task.insisted = True
        raise_in_thread(task.ident, _Insisted)


def calm(task: Task) -> None:
    """Called on the thread itself when the user's code has ended: what was not raised yet never is."""
    task.calm = True
    sys.settrace(None)
    raise_in_thread(task.ident, None)


class _Settled(BaseException):
    """Raised in the thread that settles, and caught there."""


def settle() -> None:
    """Called by the host when it has insisted: the interpreter forgets that exceptions are to be raised in threads.

    CPython 3.11 keeps a note of it for all threads until some thread raises one, and a thread that ended or calmed down
    never does. With the note there, every thread looks again and again for what is not there; and where a profiler is
    set, it never gets past the beginning of a function.
    """
    with contextlib.suppress(_Settled):
        raise_in_thread(_thread.get_ident(), _Settled)
        for _ in range(1000):  # it is raised at one of these jumps back
            pass


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """No garbage is collected inside: what is raised in a finalizer is lost, and Python prints it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
