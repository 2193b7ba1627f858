"""Ctrl-C in the middle of many runs: what they have found by then goes with the exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simdist.errors import InterruptedRunsError

__all__ = ["kept_when_interrupted"]


@contextmanager
def kept_when_interrupted(report: Callable[[], object | None]) -> Iterator[None]:
    """Inside, an interruption takes `report` with it, if there is one.

    Raises:
        InterruptedRunsError: an interruption, which is its cause.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        found = report()
        if found is None:
            raise
        raise InterruptedRunsError(found) from error
