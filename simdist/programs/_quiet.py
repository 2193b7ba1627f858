"""Suppresses the logs of ranks in hundreds of runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from simdist.process import current_process

__all__ = ["no_logs_of_ranks"]


@contextmanager
def no_logs_of_ranks() -> Iterator[None]:
    """Keep logs of ranks from the host's handlers: torch alone logs each collective, in hundreds of runs."""

    def is_of_host(_: logging.LogRecord) -> bool:
        return current_process() is None

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(is_of_host)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_of_host)
