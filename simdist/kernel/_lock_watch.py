"""The safety net under code that keeps the GIL.

While a task runs C code that does not release the GIL (a regular expression that backtracks forever, a power of huge
integers), no thread of the process runs any Python: neither the one that waits for the world nor a signal handler. Only
the operating system's kernel can act then. It keeps a timer, which the waiting thread postpones whenever it runs. When
the timer expires, `faulthandler` writes the stacks of all threads, in C and without the GIL, and a moment later the
same signal ends the process, since no Python code could. That report cannot name what only Python knows, so its message
is in it as the names of two functions: the one in which the host waits, and each rank's first.

The timer is none of the three that programs use (`setitimer`), and the signal is one of those without a name: pytest's
`faulthandler_timeout`, pytest-timeout and `signal.alarm` work as before. A process that was stopped, with Ctrl-Z or
by a debugger, for longer than the limit only gets the stacks: the two signals of the meantime are merged into one.
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
_REPEAT_S = 3  # from the stacks to the end of the process
_MOST_S = 1e8

_taken = False  # by a world; faulthandler has one registration for each signal


def _descriptor() -> int:
    """Standard error; pytest captures it, but the plugin knows where pytest's own faulthandler writes."""
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
        """Start the timer."""
        global _taken
        timer = KillTimer()
        if _taken or self.limit_s > _MOST_S or not timer.is_free():
            return
        if "pydevd" in sys.modules:
            return  # such a debugger stops all threads, including the one that waits
        if not timer.make():
            return
        _taken = True
        faulthandler.register(timer.SIGNAL, file=_descriptor(), all_threads=True, chain=False)
        timer.start(self.limit_s, self.repeat_s)
        self._timer = timer

    def postpone(self) -> None:
        """Count from now, also if the stacks have been written: the GIL was free."""
        if self._timer is not None:
            self._timer.restart()

    def pause(self) -> None:
        """Suspend the timer until `postpone`, for code that may take its time."""
        if self._timer is not None:
            self._timer.pause()

    def disarm(self) -> None:
        """Remove the timer and the handler. May be repeated."""
        global _taken
        if self._timer is not None:
            self._timer.delete()
            faulthandler.unregister(self._timer.SIGNAL)
            self._timer = None
            _taken = False


def named(function: Callable[..., Any], name: str) -> Any:
    """Return the same function under another name, for stack traces; `function` must close over nothing."""
    code = function.__code__.replace(co_name=name, co_qualname=name)
    return FunctionType(code, function.__globals__, name)
