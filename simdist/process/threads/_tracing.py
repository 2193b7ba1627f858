"""Tracing by the host: coverage and debuggers see ranks as they see threads of `threading`."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["debugger_of_host", "introduce", "trace_main_thread", "traced_by_debugger"]

_KEEPERS = ("_pydevd_sys_monitoring", "_pydevd_sys_monitoring_cython")  # with pydevd's data of threads, from 3.12 on


def trace_main_thread() -> None:
    """Trace and profile the calling thread, the main one of a simulated process, as `threading` does with its threads.

    Other threads of ranks begin in `threading`, which does this itself.
    """
    trace, profile = threading.gettrace(), threading.getprofile()
    debugger = debugger_of_host()
    if debugger is not None:
        introduce(threading.current_thread)
        debugger.enable_tracing()  # by `sys.settrace` or `sys.monitoring`
    elif trace is not None:
        sys.settrace(trace)
    if profile is not None:
        sys.setprofile(profile)


def introduce(object_of: Callable[[], threading.Thread]) -> None:
    """Let the debugger find the calling thread's object on the rank.

    It ignores threads without one. From Python 3.12 on it asks at a thread's very first line, when the thread is not a
    rank's yet, and keeps the dummy object that it gets.
    """
    if not traced_by_debugger():
        return
    thread: Any = object_of()
    thread._ident = ident = _thread.get_ident()
    if isinstance(threading._active.get(ident), threading._DummyThread):  # type: ignore[attr-defined]
        del threading._active[ident]  # type: ignore[attr-defined]
    for name in _KEEPERS:
        kept = getattr(sys.modules.get(f"_pydevd_sys_monitoring.{name}"), "_thread_local_info", None)
        if kept is not None:
            vars(kept).clear()


def traced_by_debugger() -> bool:
    """True while pydevd traces the host."""
    return debugger_of_host() is not None


def debugger_of_host() -> Any:
    """The object by which pydevd, the debugger of VS Code and PyCharm, traces the host; None without it."""
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    return None if constants is None else constants.get_global_debugger()
