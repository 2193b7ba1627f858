"""Tracebacks for users: with the lines of the test and of what it calls, without those of torch and simdist."""

from __future__ import annotations

from types import FrameType, TracebackType

import pytest

from simdist.errors import InternalError
from simdist.frames import is_internal, user_frames

__all__ = ["hides", "in_the_test", "traceback_of", "without_internals"]


def hides(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """For `__tracebackhide__`: hide the frame, unless pytest would then show only a message."""
    error = excinfo.value
    return not isinstance(error, pytest.fail.Exception) or error.pytrace


def without_internals(error: BaseException) -> BaseException:
    """Reduce the tracebacks of `error`, its causes and contexts to the user's frames.

    A traceback without user frames stays as it is.
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


def in_the_test(item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    """Return pytest's report of a misuse of simdist: with the user's lines that led to it, unless `--full-trace`."""
    error = excinfo.value
    if item.config.getoption("fulltrace", False) or isinstance(error, InternalError):
        return excinfo
    return pytest.ExceptionInfo.from_exception(without_internals(error))


def traceback_of(innermost: FrameType) -> TracebackType | None:
    """Return a traceback that ends in the user's innermost frame from `innermost` on."""
    frames = [(frame, frame.f_lasti, frame.f_lineno) for frame in user_frames(innermost)]
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
