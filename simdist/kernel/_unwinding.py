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
import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from simdist.kernel._task import Task, TaskKilled

__all__ = ["calm", "insist", "without_collector"]

_OURS = str(Path(__file__).parents[1])
_raise_in: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Insisted(TaskKilled):
    """Python makes it on the thread in which it is raised."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        sys.settrace(_raise_again)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_OURS):
                frame.f_trace = _raise_again
            frame = frame.f_back


def _raise_again(frame: FrameType, event: str, argument: Any) -> Any:
    if frame.f_code.co_filename.startswith(_OURS):
        return None
    _raise_in(ctypes.c_ulong(_thread.get_ident()), ctypes.py_object(_Insisted))
    return _raise_again


def insist(task: Task) -> None:
    """Raise an exception in the thread of a doomed task that it can't swallow for long. May be repeated."""
    if not task.calm:
        task.insisted = True
        _raise_in(ctypes.c_ulong(task.ident), ctypes.py_object(_Insisted))


def calm(task: Task) -> None:
    """Called on the thread itself when the user's code has ended: what was not raised yet never is."""
    task.calm = True
    sys.settrace(None)
    _raise_in(ctypes.c_ulong(task.ident), None)


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
