"""Ctrl-C in the middle of many runs: the exception carries the findings up to then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simdist.errors import InterruptedRunsError

__all__ = ["kept_when_interrupted"]


@contextmanager
def kept_when_interrupted(report: Callable[[], object | None]) -> Iterator[None]:
    """While inside, an interruption carries `report`, if there is one.

    Raises:
        InterruptedRunsError: an interruption, which is its cause, came after a first report.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        found = report()
        if found is None:
            raise
        raise InterruptedRunsError(found) from error
