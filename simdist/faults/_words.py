"""Wordings that several kinds of faults share."""

from __future__ import annotations

__all__ = ["milliseconds"]


def milliseconds(time_ns: int) -> str:
    """Return a duration as events write it: "1.5 ms"."""
    return f"{time_ns / 1e6:g} ms"
