"""Ctrl-C and SIGTERM: both end the command, and leave no folder, no process and no semaphore.

An interrupted search has results up to then. They are reported like those of any other search, before the command ends
as interrupted.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from simdist.cli._progress import LiveLine
from simdist.errors import InterruptedRunsError

__all__ = ["exit_code", "interruption", "searched", "terminated_like_interrupted"]

Report = TypeVar("Report")


class _Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def interruption(error: KeyboardInterrupt) -> tuple[str, int]:
    """Return which signal ended a command, in a word, and the exit code by which a shell reports it."""
    terminated = isinstance(error, _Terminated)
    return "terminated" if terminated else "interrupted", 128 + (signal.SIGTERM if terminated else signal.SIGINT)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """While inside, SIGTERM interrupts the program as Ctrl-C does."""

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


def searched(search: Callable[[LiveLine], Report]) -> tuple[Report, float, BaseException | None]:
    """Run a search; return its report, its real seconds, and its interruption or None; see `exit_code`."""
    started, interruption = time.perf_counter(), None
    try:
        with terminated_like_interrupted(), LiveLine() as line:
            report = search(line)
    except InterruptedRunsError as error:
        report, interruption = error.report, error.__cause__
    return report, time.perf_counter() - started, interruption


def exit_code(ok: bool, interruption: BaseException | None) -> int:
    """Return the exit code of a search after its report.

    Raises:
        KeyboardInterrupt: the search was interrupted.
    """
    if interruption is not None:
        raise interruption
    return 0 if ok else 1
