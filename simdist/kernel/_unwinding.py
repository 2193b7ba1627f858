"""Ending the thread of a task that does not want to end.

A doomed task gets `TaskKilled` from everything it does. Code that catches every exception, in a loop, goes on
nevertheless. Python can raise an exception in another thread, between two instructions; such a loop catches that as
well, unless it is just in its handler or on its way back to the beginning. So the exception that is raised here turns
on tracing in the thread when it is made, and from then on every line of the user's code raises another: the code gets
no further than the handler's end, where no `try` of the same loop protects it.

Since CPython 3.12 an exception that is raised in another thread arrives only at calls and after jumps, so also inside
the tracing function, which ends the tracing. There `sys.monitoring` replaces tracing: each line of the functions on the
thread's stack raises, and an exception from the callback leaves the callback in place. It is a tool of the whole
process; `settle` removes it. If a program has taken all tools, tracing is used. An exception that leaves a `with`
comes to the line of the `with` again, to call `__exit__`. This does not raise, so that files and locks are released;
it raises the second time, because a loop may come there for ever.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from simdist.frames import is_ours
from simdist.inside.python import enters_exit, raise_in_thread
from simdist.kernel._task import Task, TaskKilled

__all__ = ["calm", "insist", "settle", "undisturbed"]


_HAS_NOTE = sys.version_info < (3, 12)  # see `settle`


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


if sys.version_info >= (3, 12):

    class _Lines:
        """Lets each line of some functions raise `TaskKilled`, on the threads of doomed tasks."""

        def __init__(self) -> None:
            self._tool: int | None = None
            self._codes = set[CodeType]()
            self._doomed = set[int]()
            self._left = set[tuple[int, int]]()  # frames, and where in them a `with` was left

        def watch(self, ident: int) -> bool:
            """Begin with a thread, with the functions on its stack now; False if there is no tool left."""
            if self._tool is None:
                free = [each for each in (4, 3, 5, 2, 1, 0) if sys.monitoring.get_tool(each) is None]
                if not free:
                    return False
                self._tool = free[0]
                sys.monitoring.use_tool_id(self._tool, "simdist ends a task")
                sys.monitoring.register_callback(self._tool, sys.monitoring.events.LINE, self._raise)
            self._doomed.add(ident)
            frame = sys._current_frames().get(ident)
            while frame is not None:
                if not is_ours(frame) and frame.f_code not in self._codes:
                    self._codes.add(frame.f_code)
                    sys.monitoring.set_local_events(self._tool, frame.f_code, sys.monitoring.events.LINE)
                frame = frame.f_back
            return True

        def forget(self, ident: int) -> None:
            """Let the thread's lines no longer raise."""
            self._doomed.discard(ident)

        def end(self) -> None:
            """Restore the interpreter's state."""
            if self._tool is not None:
                for code in self._codes:
                    sys.monitoring.set_local_events(self._tool, code, sys.monitoring.events.NO_EVENTS)
                sys.monitoring.register_callback(self._tool, sys.monitoring.events.LINE, None)
                sys.monitoring.free_tool_id(self._tool)
            self._tool = None
            self._codes.clear()
            self._doomed.clear()
            self._left.clear()

        def _raise(self, code: CodeType, line: int) -> None:
            if _thread.get_ident() not in self._doomed:
                return
            frame = sys._getframe(1)
            place = id(frame), frame.f_lasti
            if place in self._left or not enters_exit(frame):
                raise TaskKilled
            self._left.add(place)

else:

    class _Lines:
        """Python 3.11 has no such tools."""

        def watch(self, ident: int) -> bool:
            """Return False: there is no tool."""
            return False

        def forget(self, ident: int) -> None:
            """Do nothing."""

        def end(self) -> None:
            """Do nothing."""


_lines = _Lines()


def insist(task: Task) -> None:
    """Raise an exception in the thread of a doomed task that it cannot swallow for long. May be repeated.

    Nothing is raised while the thread is in a callback of the garbage collector: it would be lost there, and printed.
    """
    if not task.calm and not _hears_of_a_collection(task.ident):
        task.insisted = True
        raise_in_thread(task.ident, TaskKilled if _lines.watch(task.ident) else _Insisted)


def _hears_of_a_collection(ident: int) -> bool:
    codes = {getattr(each, "__code__", None) for each in gc.callbacks}
    frame = sys._current_frames().get(ident)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def calm(task: Task) -> None:
    """Let no pending exception leave this function; called on the thread when the user's code has ended.

    The host may have settled long before, if the thread was blocked meanwhile: this also removes the note of `settle`.
    """
    task.calm = True
    sys.settrace(None)
    _lines.forget(task.ident)
    _raise_here()
    sys.settrace(None)


class _Settled(BaseException):
    """Raised in the thread that settles, and caught there."""


def settle() -> None:
    """Make the interpreter forget pending exceptions in threads; called by the host after it has insisted.

    CPython 3.11 keeps a note of them for all threads until some thread raises one, and a thread that ended or calmed
    down never does. While the note exists, every thread repeatedly looks for an exception that does not exist; and if a
    profiler is set, it never gets past the beginning of a function.
    """
    _lines.end()
    _raise_here()


def _raise_here() -> None:
    """Raise this thread's pending exception, or `_Settled` in its place, and catch it."""
    try:  # to enter a context manager is a call, and the exception would be raised there
        raise_in_thread(_thread.get_ident(), _Settled)
        for _ in range(1000):  # it is raised at one of these jumps back
            pass
    except (_Settled, TaskKilled):
        pass


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let the host insist inside this context.

    No garbage is collected meanwhile: an exception that is raised in a finalizer is lost, and Python prints it. Under
    CPython 3.11 the host is neither traced nor profiled: see `settle`.
    """
    enabled = gc.isenabled()
    trace, profile = (sys.gettrace(), sys.getprofile()) if _HAS_NOTE else (None, None)
    gc.disable()
    if trace is not None:
        sys.settrace(None)
    if profile is not None:
        sys.setprofile(None)
    try:
        yield
    finally:
        if trace is not None or profile is not None:
            _raise_here()  # the note is removed; a blocked thread makes another one when its call returns
            sys.setprofile(profile)
            sys.settrace(trace)
        if enabled:
            gc.enable()
