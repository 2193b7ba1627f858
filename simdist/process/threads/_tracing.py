"""What the host traces: coverage and debuggers see ranks as they see threads of `threading`."""

from __future__ import annotations

import sys
import threading

__all__ = ["trace_main_thread"]


def trace_main_thread() -> None:
    """Have the calling thread, the main one of a simulated process, traced and profiled as `threading` has its threads.

    Other threads of ranks begin in `threading`, which does so itself. pydevd, the debugger of VS Code and PyCharm, does
    not trace ranks: it waits in real time for threads that it starts, which would be threads of a rank.
    """
    trace, profile = threading.gettrace(), threading.getprofile()
    if trace is not None and "pydevd" not in sys.modules:
        sys.settrace(trace)
    if profile is not None:
        sys.setprofile(profile)
