"""The net under code that keeps the GIL.

While a task runs C code that does not give the lock back (a regular expression that backtracks for ever, a power of
huge integers), no thread of the process runs any Python: not the one that waits for the world, no handler of a signal.
Only the kernel can act then. It keeps a timer, which the waiting thread puts off as long as it comes to run; when that
expires, `faulthandler` writes the stacks of all threads, in C and without the lock, and a moment later the process ends
by the same signal: there is nobody left who could do anything else. That report cannot name what only Python knows, so
its message stands in it as the names of two functions: the one in which the host waits, and each rank's first.

The timer is none of the three that programs use (`setitimer`), and the signal one of those without a name: pytest's
`faulthandler_timeout`, pytest-timeout and `signal.alarm` go on as they were. A process that was stopped, with Ctrl-Z or
by a debugger, for longer than the limit only gets the stacks: what came meanwhile is one signal and not two.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from simdist.inside.system import KillTimer

__all__ = ["LockWatch", "named"]

_LEAST_S = 5.0  # a busy machine must not look like a stall
_REPEAT_S = 3  # from the stacks to the end
_MOST_S = 1e8

_taken = False  # by a world; faulthandler has one registration for each signal


def _descriptor() -> int:
    """Standard error; pytest holds that back, and the plugin knows where its own faulthandler writes."""
    plugin = sys.modules.get("simdist.testing.plugin")
    return 2 if plugin is None else int(plugin.last_words)


class LockWatch:
    """Ends the process when `postpone` is not called for `limit_s`, but for at least five seconds.

    Does nothing where the system has no such timers, the signal is taken, or another world runs at the same time.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = max(limit_s, _LEAST_S)
        self.repeat_s = _REPEAT_S
        self._timer: KillTimer | None = None

    def arm(self) -> None:
        """Begin."""
        global _taken
        timer = KillTimer()
        if _taken or self.limit_s > _MOST_S or not timer.is_free():
            return
        if "pydevd" in sys.modules:
            return  # such a debugger stops all threads, also the one that waits
        if not timer.make():
            return
        _taken = True
        faulthandler.register(timer.SIGNAL, file=_descriptor(), all_threads=True, chain=False)
        timer.start(self.limit_s, self.repeat_s)
        self._timer = timer

    def postpone(self) -> None:
        """The lock was free: count from now, also if the stacks have been written."""
        if self._timer is not None:
            self._timer.restart()

    def pause(self) -> None:
        """What follows may take its time; until `postpone`."""
        if self._timer is not None:
            self._timer.pause()

    def disarm(self) -> None:
        """Leave nothing behind. May be repeated."""
        global _taken
        if self._timer is not None:
            self._timer.delete()
            faulthandler.unregister(self._timer.SIGNAL)
            self._timer = None
            _taken = False


def named(function: Callable[..., Any], name: str) -> Any:
    """The same function under another name, for readers of stacks; `function` must close over nothing."""
    code = function.__code__.replace(co_name=name, co_qualname=name)
    return FunctionType(code, function.__globals__, name)
