"""A timer of the system that ends the process by a signal, in C: it works even while the GIL is held.

It is none of the three timers that programs use (`setitimer`), and its signal is one of those without a name.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # of C: `signal` makes enums of all results
import ctypes
import signal
import sys
from typing import Any

__all__ = ["KillTimer"]

_CLOCK_MONOTONIC = 1
_SA_RESETHAND = 0x8000_0000
_MOST_S = 1e8


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Span(ctypes.Structure):
    _fields_ = (
        ("again_s", ctypes.c_long),
        ("again_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_library: Any = ctypes.PyDLL(None) if sys.platform == "linux" else None  # its calls keep the GIL: they are short
_DEFAULT = int(signal.SIG_DFL)
_never = _Span()


class KillTimer:
    """Sends `SIGNAL` after `limit_s`, and again every `repeat_s`; the second time it ends the process.

    First make it, then set a handler of the signal (`faulthandler.register`), and then start it.

    Example:
        >>> timer = KillTimer()
        >>> timer.is_free() and timer.make() and timer.delete()
    """

    SIGNAL: int = signal.SIGRTMAX - 2 if sys.platform == "linux" else 0

    __slots__ = ("_action", "_span", "_timer")

    def __init__(self) -> None:
        self._timer: ctypes.c_void_p | None = None
        self._action = _Action()
        self._span = _never

    def is_free(self) -> bool:
        """True if the system has such timers and the signal has no handler."""
        return _library is not None and _signal.getsignal(self.SIGNAL) == _DEFAULT

    def make(self) -> bool:
        """Have the system make the timer; False if it refuses."""
        timer, event = ctypes.c_void_p(), _Event(None, self.SIGNAL, 0)
        if _library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            return False
        self._timer = timer
        return True

    def start(self, limit_s: float, repeat_s: int) -> None:
        """Begin, once the signal has a handler: the second signal then has its default action."""
        _library.sigaction(self.SIGNAL, None, ctypes.byref(self._action))
        self._action.flags |= ctypes.c_int(_SA_RESETHAND).value
        whole_s = int(min(limit_s, _MOST_S))
        self._span = _Span(repeat_s, 0, whole_s, int((min(limit_s, _MOST_S) - whole_s) * 1e9))
        self.restart()

    def restart(self) -> None:
        """Count from now, even if the first signal was sent already."""
        _library.sigaction(self.SIGNAL, ctypes.byref(self._action), None)
        _library.timer_settime(self._timer, 0, ctypes.byref(self._span), None)

    def pause(self) -> None:
        """Send nothing until `restart`."""
        _library.timer_settime(self._timer, 0, ctypes.byref(_never), None)

    def delete(self) -> None:
        """Delete the system's timer."""
        _library.timer_delete(self._timer)
        self._timer = None
