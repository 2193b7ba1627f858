"""What a process does with a signal, asked and set from any thread, where `signal.signal` is for the main one."""

from __future__ import annotations

import ctypes

__all__ = ["set_signal_disposition", "signal_disposition"]

_get = ctypes.pythonapi.PyOS_getsig
_get.argtypes, _get.restype = [ctypes.c_int], ctypes.c_void_p
_set = ctypes.pythonapi.PyOS_setsig
_set.argtypes, _set.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


def signal_disposition(number: int) -> int:
    """0 for what the system does by itself, 1 for nothing (`SIG_DFL`, `SIG_IGN`), else the address of a handler."""
    return _get(number) or 0


def set_signal_disposition(number: int, disposition: int) -> None:
    """Set it, to what `signal_disposition` returned or to one of the first two."""
    _set(number, disposition)
