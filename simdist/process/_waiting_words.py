"""Names what a task waits for in `threading`, `queue` and modules built on them, as the program calls it."""

from __future__ import annotations

import sys
import threading

from simdist.frames import is_ours
from simdist.kernel import Task

__all__ = ["parked_in"]

_WAITING = (
    "threading",
    "queue",
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "concurrent.futures.process",
    "multiprocessing.connection",
    "multiprocessing.pool",
    "multiprocessing.queues",
    "multiprocessing.synchronize",
    "selectors",
)
_ROOTS = ("run", "_bootstrap_inner", "_bootstrap", "_worker", "worker", "_process_worker", "_feed")


def parked_in(task: Task) -> str:
    """The outermost method of the standard library in which a task waits; "" if the user's code waits itself."""
    frame = sys._current_frames().get(task.ident)
    found = ""
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if not is_ours(frame):
            if module == "importlib._bootstrap":
                return f"the import of {getattr(frame.f_locals.get('self'), 'name', 'a module')!r}"
            if module not in _WAITING or name in _ROOTS:
                break
            waiting = frame.f_locals.get("self")
            if isinstance(waiting, threading.Thread) and name == "join":
                return f"join of thread {waiting.name!r}"
            if waiting is not None:
                found = f"{type(waiting).__name__}.{name}"
        frame = frame.f_back
    return found
