"""Threads of the host program that run at the same time as a world: how a rank waits for one, in real time.

When a rank's own code waits, it waits in virtual time, and only for the rank's own threads.
"""

from __future__ import annotations

import threading
import time

from simdist.process import original

__all__ = ["wait_for_host"]

_PATIENCE = 10_000  # waits of a millisecond or more each


def wait_for_host(event: threading.Event) -> None:
    """Block the calling rank, and so its world, until a thread of the host has set `event`."""
    for _ in range(_PATIENCE):
        if event.is_set():
            return
        original(time.sleep)(0.001)
    raise AssertionError("the thread of the host did not answer")
