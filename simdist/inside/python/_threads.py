"""The handle of a thread, and exceptions raised in another thread, between two of its instructions."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import threading

from simdist.inside._facts import fact

__all__ = ["HANDLE_OF_THREAD", "raise_in_thread", "without_ctypes"]

_NAMES = ("_os_thread_handle", "_handle")  # since Python 3.14, and in 3.13
HANDLE_OF_THREAD = next((name for name in _NAMES if hasattr(threading.main_thread(), name)), "")
"""The attribute of a `Thread` with what `join` waits for; empty before Python 3.13, where that is a lock."""

_raise_in = ctypes.PyDLL(None).PyThreadState_SetAsyncExc  # programs declare types for that of `ctypes.pythonapi`
_raise_in.argtypes, _raise_in.restype = [ctypes.c_ulong, ctypes.py_object], ctypes.c_int


def without_ctypes(value: object) -> object:
    """The value of an object of `ctypes`, such as an integer or a reference; all else as it is."""
    return value.value if isinstance(value, ctypes._SimpleCData) else value


def raise_in_thread(ident: int, kind: type[BaseException]) -> None:
    """Have a thread raise an exception of this class soon; it replaces an earlier one that was not raised yet."""
    _raise_in(ident, kind)


class _Probed(BaseException):
    pass


@fact(
    "python.async_exceptions",
    what="an exception that is set in a thread is raised there at one of the next jumps back",
    source="CPython, Python/pystate.c, PyThreadState_SetAsyncExc",
    seen="3.11 to 3.14",
    feature="a doomed rank that catches every exception in a loop is not ended",
)
def _is_raised() -> str:
    with contextlib.suppress(_Probed):
        raise_in_thread(_thread.get_ident(), _Probed)
        for _ in range(1000):
            pass
        return "it was not raised"
    return ""


@fact(
    "python.thread_handles",
    what="a Thread keeps what its join waits for in an attribute with one of two names, since Python 3.13",
    source="CPython, Lib/threading.py, Thread.__init__",
    seen="3.11 to 3.14",
    feature="join of a rank's threads raises that they were not started",
)
def _keeps_handle() -> str:
    if hasattr(_thread, "start_joinable_thread") and not HANDLE_OF_THREAD:
        return f"a thread has neither {' nor '.join(_NAMES)}"
    return ""
