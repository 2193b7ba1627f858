"""pytest's own fixtures on ranks, while a world runs.

`monkeypatch`, `capsys` and `caplog` are objects of the host process that all ranks share. On a rank they act on the
rank: on its environment, its output, its log records. As everywhere in simdist, their functions are replaced for the
length of the world by ones that look which thread is calling.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simdist.inside.torch import c10d_logger
from simdist.process import Patches, SimProcess, current_process

__all__ = ["pytest_on_ranks"]
_environ: Any = os.environ  # the stubs lack parts of it
_Log = pytest.LogCaptureFixture
_Records = Callable[[_Log], list[logging.LogRecord]]


class _Environment:
    """The environment of one process, for any thread: pytest undoes a rank's change in the host."""

    def __init__(self, process: SimProcess) -> None:
        self._data = process.environ

    def get(self, name: str, default: object = None) -> object:
        found = self._data.get(_environ.encodekey(name))
        return default if found is None else _environ.decodevalue(found)

    def __contains__(self, name: str) -> bool:
        return _environ.encodekey(name) in self._data

    def __setitem__(self, name: str, value: str) -> None:
        self._data[_environ.encodekey(name)] = _environ.encodevalue(value)

    def __delitem__(self, name: str) -> None:
        del self._data[_environ.encodekey(name)]


@contextlib.contextmanager
def pytest_on_ranks() -> Iterator[None]:
    """Let pytest's fixtures act on the rank that calls them."""
    patches = Patches()
    for name in ("setitem", "delitem"):
        patches.replace(pytest.MonkeyPatch, name, _on_environment(getattr(pytest.MonkeyPatch, name)))
    output = _Output()
    patches.replace(pytest.CaptureFixture, "readouterr", output.reading(pytest.CaptureFixture.readouterr))
    patches.replace(pytest.CaptureFixture, "disabled", _disabled(pytest.CaptureFixture.disabled))
    log: Any = pytest.LogCaptureFixture
    patches.replace(log, "records", property(_own_records(log.records.fget)))
    patches.replace(log, "text", property(_own_text(log.text.fget)))
    patches.replace(log, "clear", _clear_own(log.clear))
    # Torch logs every exception of a collective, by default to no handler; pytest would show it again below the
    # failure.
    logger = c10d_logger()
    if logger.name.startswith("c10d-NullHandler"):
        patches.replace(logger, "disabled", True)
    try:
        yield
    finally:
        patches.undo()


def _on_environment(original: Callable[..., None]) -> Callable[..., None]:
    def change(self: pytest.MonkeyPatch, dic: object, *args: object, **kwargs: object) -> None:
        process = current_process()
        mine = process is not None and dic is os.environ
        original(self, _Environment(process) if process is not None and mine else dic, *args, **kwargs)

    return change


class _Output:
    """The amount of its own output that each rank has read."""

    def __init__(self) -> None:
        self._read: dict[tuple[SimProcess, str], int] = {}

    def reading(self, original: Callable[[Any], Any]) -> Callable[..., object]:
        def readouterr(fixture: Any) -> object:
            process = current_process()
            if process is None:
                return original(fixture)
            texts = [self._take(process, name, lines) for name, lines in _streams(process)]
            if isinstance(fixture.captureclass.EMPTY_BUFFER, bytes):
                return type(original(fixture))(*(text.encode() for text in texts))
            return type(original(fixture))(*texts)

        return readouterr

    def _take(self, process: SimProcess, name: str, lines: list[str]) -> str:
        text = "".join(lines) + process.partial[name]
        start = self._read.get((process, name), 0)
        self._read[process, name] = len(text)
        return text[start:]


def _streams(process: SimProcess) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
    return ("stdout", process.stdout), ("stderr", process.stderr)


def _disabled(
    original: Callable[..., contextlib.AbstractContextManager[None]],
) -> Callable[..., contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def disabled(fixture: object) -> Iterator[None]:
        # Capturing resumes by installing the host's streams, which are the wrong ones on a rank.
        streams = sys.stdout, sys.stderr
        with original(fixture):
            yield
        if current_process() is not None:
            sys.stdout, sys.stderr = streams

    return disabled


def _is_own(record: logging.LogRecord) -> bool:
    return bool(record.thread == threading.get_ident())


def _own_records(original: _Records) -> _Records:
    def records(fixture: _Log) -> list[logging.LogRecord]:
        found = original(fixture)
        return found if current_process() is None else [record for record in found if _is_own(record)]

    return records


def _own_text(original: Callable[[_Log], str]) -> Callable[[_Log], str]:
    def text(fixture: _Log) -> str:
        if current_process() is None:
            return original(fixture)
        return "".join(f"{fixture.handler.format(record)}\n" for record in fixture.records)

    return text


def _clear_own(original: Callable[[_Log], None]) -> Callable[[_Log], None]:
    def clear(fixture: _Log) -> None:
        if current_process() is None:
            original(fixture)
        else:
            fixture.handler.records[:] = [record for record in fixture.handler.records if not _is_own(record)]

    return clear
