"""Ctrl-C and SIGTERM: both end what is under way, so that no folder, no process and no semaphore is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruption", "terminated_like_interrupted"]


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def interruption(error: KeyboardInterrupt) -> tuple[str, int]:
    """What ended a command, in a word, and the exit code by which a shell reports it."""
    terminated = isinstance(error, _Terminated)
    return "terminated" if terminated else "interrupted", 128 + (signal.SIGTERM if terminated else signal.SIGINT)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Inside, SIGTERM ends what is under way as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_DFL or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
