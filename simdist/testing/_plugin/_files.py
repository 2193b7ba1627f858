"""The files that options request: a Chrome trace, or the event lines, of each world."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from simdist.result import RunResult

__all__ = ["events_path", "make_folders", "write_files"]

_LONGEST = 120


def make_folders(config: pytest.Config) -> None:
    """Make the folders that `--simdist-trace` and `--simdist-events` name.

    Raises:
        UsageError: a folder can't be made.
    """
    for option in ("simdist_trace", "simdist_events"):
        folder = getattr(config.option, option)
        if folder:
            try:
                Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                reason = error.strerror or str(error)
                raise pytest.UsageError(f"--{option.replace('_', '-')} {folder}: {reason}") from None


def write_files(item: pytest.Item, seed: int, index: int, result: RunResult) -> None:
    """Write the files that options request; `index` counts the worlds of the test."""
    option = item.config.option
    if option.simdist_trace:
        from simdist.trace import write_chrome_trace

        path = _path(option.simdist_trace, item.nodeid, seed, index, ".json")
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            write_chrome_trace(result, stream)
    if option.simdist_events:
        from simdist.trace import write_events

        path = events_path(option.simdist_events, item.nodeid, seed, index)
        with path.open("w", encoding="utf-8", newline="\n") as stream:
            write_events(result.events, stream)


def events_path(folder: str, nodeid: str, seed: int, index: int) -> Path:
    """Return the path for the events of a test's `index`-th world."""
    return _path(folder, nodeid, seed, index, ".jsonl")


def _path(folder: str, nodeid: str, seed: int, index: int, suffix: str) -> Path:
    return Path(folder) / f"{_slug(nodeid, seed)}{f'-{index + 1}' if index else ''}{suffix}"


def _slug(nodeid: str, seed: int) -> str:
    """Return a unique file name for the test: invalid characters are replaced, long names are cut."""
    name = re.sub(r"[^A-Za-z0-9_.=,-]+", "_", nodeid.replace("::", "-")).strip("_")
    if len(name) > _LONGEST or name != nodeid.replace("::", "-").replace("/", "_").replace("[", "_").replace("]", ""):
        name = f"{name[:_LONGEST]}-{zlib.crc32(nodeid.encode()):08x}"
    return name if name.endswith(f"seed{seed}") else f"{name}-seed{seed}"
