"""What a process does with a signal, read and set from any thread; `signal.signal` works on the main one only."""

from __future__ import annotations

import ctypes

__all__ = ["set_signal_disposition", "signal_disposition"]

_get = ctypes.pythonapi.PyOS_getsig
_get.argtypes, _get.restype = [ctypes.c_int], ctypes.c_void_p
_set = ctypes.pythonapi.PyOS_setsig
_set.argtypes, _set.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


def signal_disposition(number: int) -> int:
    """0 for the system's default action, 1 for none (`SIG_DFL`, `SIG_IGN`), else the address of a handler."""
    return _get(number) or 0


def set_signal_disposition(number: int, disposition: int) -> None:
    """Set the disposition of a signal: 0, 1, or what `signal_disposition` returned."""
    _set(number, disposition)
