"""What a thread has another one do between two of its instructions, by functions of Python's C API.

`PyThreadState_SetAsyncExc` raises an exception there, and `Py_AddPendingCall` calls a function on the main thread.
Programs reach both through `ctypes`. On a rank the other thread waits in the kernel, which must not be interrupted: it
does what it was given when its wait is over, as in an interpreter, which ends no wait for it either. Nothing is
replaced before a rank has a second thread.

In doubt: a thread that computes is between two of its instructions only where it waits, or asks other threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from simdist.inside.python import PYTHON_LIBRARY, without_ctypes
from simdist.kernel import TaskState
from simdist.process._runtime import Replacement, current_process

__all__ = ["REPLACEMENTS"]

_MOST_CALLS = 32  # that wait for the main thread at a time: `NPENDINGCALLS` of CPython
_Function = Callable[[object, object], int]


class _Raise:
    """Raises an exception of a class, as CPython does."""

    def __init__(self, kind: object) -> None:
        self._kind = kind

    def __call__(self) -> None:
        kind = self._kind
        if isinstance(kind, type) and issubclass(kind, BaseException):
            raise kind
        raise SystemError(f"_PyErr_SetObject: exception {kind!r} is not a BaseException subclass")


def _raising(original: _Function) -> _Function:
    @functools.wraps(original)
    def set_async_exc(ident: object, kind: object) -> int:
        process, number = current_process(), without_ctypes(ident)
        task = None if process is None else next((each for each in process.tasks if each.ident == number), None)
        if process is None or task is process.simulation.current:
            return original(ident, kind)
        if task is None or task.state is TaskState.DONE:
            return 0
        process.between = [each for each in process.between if each[0] is not task or not isinstance(each[1], _Raise)]
        if kind not in (None, 0):  # which take an earlier exception back
            process.between.append((task, _Raise(without_ctypes(kind))))
        return 1

    return set_async_exc


def _calling(original: _Function) -> _Function:
    @functools.wraps(original)
    def add_pending_call(function: object, argument: object) -> int:
        process = current_process()
        if process is None or process.main is None or not callable(function):
            return original(function, argument)
        if sum(not isinstance(each, _Raise) for _, each in process.between) >= _MOST_CALLS:
            return -1
        process.between.append((process.main, functools.partial(function, argument)))
        if process.main is process.simulation.current:
            process.do_between()
        return 0

    return add_pending_call


REPLACEMENTS = (
    Replacement(PYTHON_LIBRARY, "PyThreadState_SetAsyncExc", _raising),
    Replacement(PYTHON_LIBRARY, "Py_AddPendingCall", _calling),
)
