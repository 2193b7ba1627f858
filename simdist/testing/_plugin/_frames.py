"""Tracebacks as a user wants them: the lines of the test and what it calls, not those of torch and simdist."""

from __future__ import annotations

import os
from types import FrameType, TracebackType
from typing import Any

import pytest
import torch

import simdist
from simdist.errors import InternalError

__all__ = ["hides", "in_the_test", "is_internal", "traceback_of", "without_internals"]

_INTERNAL = tuple(os.path.join(os.path.dirname(str(module.__file__)), "") for module in (simdist, torch))  # noqa: PTH118, PTH120


def is_internal(frame: FrameType) -> bool:
    """True for code of torch, of simdist, and of the import system."""
    name = frame.f_code.co_filename
    return name.startswith(_INTERNAL) or name.startswith("<frozen")


def hides(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """For `__tracebackhide__`: hide the frame, unless there is nothing to see but a message."""
    error = excinfo.value
    return not isinstance(error, pytest.fail.Exception) or error.pytrace


def without_internals(error: BaseException) -> BaseException:
    """`error`, and whatever it came from, with tracebacks that show the user's frames only.

    A traceback that has none of these stays as it is.
    """
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or any(each is other for other in seen):
            continue
        seen.append(each)
        entries = [entry for entry in _entries(each.__traceback__) if not is_internal(entry.tb_frame)]
        if entries:
            each.__traceback__ = _chained([(entry.tb_frame, entry.tb_lasti, entry.tb_lineno) for entry in entries])
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return error


def in_the_test(item: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    """What pytest should report of a misuse of simdist: the user's lines that led to it, unless `--full-trace`."""
    error = excinfo.value
    if item.config.getoption("fulltrace", False) or isinstance(error, InternalError):
        return excinfo
    return pytest.ExceptionInfo.from_exception(without_internals(error))


def traceback_of(innermost: FrameType) -> TracebackType | None:
    """A traceback as if something had been raised in the user's innermost frame from `innermost` on."""
    frames = []
    frame: FrameType | None = innermost
    while frame is not None:
        if not is_internal(frame):
            frames.append((frame, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    return _chained(frames[::-1])


def _entries(trace: TracebackType | None) -> list[TracebackType]:
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    return entries


def _chained(frames: list[tuple[FrameType, int, int]]) -> TracebackType | None:
    trace: TracebackType | None = None
    for frame, instruction, line in reversed(frames):
        trace = TracebackType(trace, frame, instruction, line)
    return trace
