"""The end of a process without the teardown of the interpreter."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import Any

from simdist.inside._facts import fact

__all__ = ["end_process"]

_threads_end: Any = getattr(threading, "_shutdown", None)
_exits_run: Any = getattr(atexit, "_run_exitfuncs", None)


def end_process(code: int) -> None:
    """End the process at once, after the interpreter's first steps: wait for threads, run atexit, flush buffers.

    Returns if this Python can't do that, or if a stream can't be written to, which Python reports in its own way.
    """
    if _differs():
        return
    _threads_end()
    _exits_run()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None if it was closed before Python began
                stream.flush()
    except OSError:
        return
    ctypes.CDLL(None).fflush(None)  # what C code has printed
    os._exit(code)


@fact(
    "python.end",
    what="the interpreter waits for threads and runs what atexit was given by functions that can be called earlier",
    source="CPython, Python/pylifecycle.c, Py_FinalizeEx",
    seen="3.11 to 3.14",
    feature="a command ends only when Python has taken all of torch apart",
)
def _differs() -> str:
    if os.name != "posix":
        return "this is no POSIX system"
    missing = [name for name, each in (("_shutdown", _threads_end), ("_run_exitfuncs", _exits_run)) if each is None]
    return f"there is no {' and no '.join(missing)}" if missing else ""
