"""Which ports this process listens at, C code included."""

from __future__ import annotations

import os

from simdist.inside.python import original

__all__ = ["listens_at"]

_LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it


def listens_at(port: int) -> bool:
    """True if a TCP socket of this process listens at a port; False where the system does not report it (no /proc)."""
    ours = _own()  # asked first: most processes have none, and the machine's tables are long
    return bool(ours) and not ours.isdisjoint(_listening(port))


def _own() -> set[str]:
    """The sockets of this process, as links in /proc name them."""
    found: set[str] = set()
    try:
        numbers = original(os.listdir)("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            link = original(os.readlink)(f"/proc/self/fd/{number}")
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:"):
            found.add(link)
    return found


def _listening(port: int) -> set[str]:
    """The sockets of the machine that listen there."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with original(open)(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        for _, local, _, state, *rest in rows:
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                found.add(f"socket:[{rest[5]}]")
    return found
