"""Torch's analyser of flight records, and its output."""

from __future__ import annotations

import logging
from pathlib import Path

from torch.distributed.flight_recorder import fr_trace

__all__ = ["analysed"]

_LOGGER = logging.getLogger("Flight Recorder")


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said += record.getMessage().splitlines()


def analysed(folder: Path, *options: str) -> list[str]:
    """Return the analyser's lines about the records in a folder."""
    lines, level = _Lines(), _LOGGER.level
    _LOGGER.addHandler(lines)
    _LOGGER.setLevel(logging.INFO)
    try:
        fr_trace.main([str(folder), *options])
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(lines)
    return lines.said
