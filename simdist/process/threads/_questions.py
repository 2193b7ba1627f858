"""Loops that only ask whether another thread has done something, such as `while not event.is_set(): pass`.

Time stands still while a task runs, and the other thread never gets the baton. So the answer "not yet" counts as a look
at the clock, and after thousands of them without a pause time passes (`Simulation.read_clock`). Nothing is replaced
before a rank has a second thread.

Time then passes slowly, unlike in loops that ask for a child (`Simulation.ask`): a thread may well compute all the
time, and only check whether it is to stop.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simdist.process._runtime import Make, Replacement, current_process

__all__ = ["REPLACEMENTS"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _not_yet() -> None:
    process = current_process()
    if process is not None:
        process.simulation.read_clock()
        if process.between:
            process.do_between()


def _asking(not_yet: bool) -> Make:
    """For a method that returns `not_yet` as long as there is something to wait for."""

    def make(original: Callable[_P, bool]) -> Callable[_P, bool]:
        @functools.wraps(original)
        def ask(*args: _P.args, **kwargs: _P.kwargs) -> bool:
            answer = original(*args, **kwargs)
            if answer is not_yet:
                _not_yet()
            return answer

        return ask

    return make


def _taking(original: Callable[[queue.Queue[_T]], _T]) -> Callable[[queue.Queue[_T]], _T]:
    @functools.wraps(original)
    def get_nowait(self: queue.Queue[_T]) -> _T:
        try:
            return original(self)
        except queue.Empty:
            _not_yet()
            raise

    return get_nowait


REPLACEMENTS = (
    Replacement(threading.Event, "is_set", _asking(False)),
    Replacement(threading.Thread, "is_alive", _asking(True)),
    Replacement(queue.Queue, "empty", _asking(True)),
    Replacement(queue.Queue, "get_nowait", _taking),
)
