"""Hundreds of runs in a row: what ranks log goes nowhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from simdist.process import current_process

__all__ = ["no_logs_of_ranks"]


@contextmanager
def no_logs_of_ranks() -> Iterator[None]:
    """Let nothing that ranks log reach the host's handlers: torch alone logs each collective, in hundreds of runs."""

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
