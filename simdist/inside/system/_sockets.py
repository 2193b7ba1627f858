"""Which ports this process listens at, C code included."""

from __future__ import annotations

import _socket
import os
import socket

from simdist.inside.python import original

__all__ = ["listens_at"]

_INTERNET = (socket.AF_INET, socket.AF_INET6)


def listens_at(port: int) -> bool:
    """True if a TCP socket of this process listens at a port; False where the system lists no open files (no /proc)."""
    try:
        numbers = original(os.listdir)("/proc/self/fd")
    except OSError:
        return False
    return any(_listens(int(number), port) for number in numbers)


def _listens(number: int, port: int) -> bool:
    # Asks the socket itself: the machine's tables take milliseconds to read.
    try:
        found = _socket.socket(fileno=number)
    except OSError:  # no socket, or closed meanwhile
        return False
    try:
        listens = found.family in _INTERNET and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return bool(listens) and found.getsockname()[1] == port
    except OSError:
        return False
    finally:
        found.detach()
