"""`faulthandler` on a rank: only noted as on or off, but with reports for signals that ranks send each other.

A real crash is the host's, and a report after some real seconds would show nothing of a rank. A rank can register a
report for a signal (`faulthandler.register`). The signal is simulated, and a handler on the rank's main task writes the
report when it arrives.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal as _signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TextIO, TypeVar

from simdist.frames import frames_by_thread, is_ours
from simdist.process._process import SimProcess
from simdist.process._runtime import Extra, Make, Patches, Replacement, current_process, current_runtime, on_ranks

if TYPE_CHECKING:
    from simdist.process._process import Handler

__all__ = ["install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_NAMES = ("SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGSEGV")
_FATAL = tuple(int(getattr(_signal, name)) for name in _NAMES if hasattr(_signal, name))
_DEEPEST = 100  # frames of a stack that it writes


class _Report:
    """A signal handler that writes where the threads of a process are."""

    def __init__(self, process: SimProcess, file: int | TextIO | None, every: bool, before: Handler) -> None:
        self._process = process
        self._file = file
        self._every = every
        self.before = before  # the handler that it has replaced
        self.chain = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        text = "".join(self._lines(frame))
        if isinstance(self._file, int):
            os.write(self._file, text.encode("ascii", "backslashreplace"))
        else:
            file = sys.stderr if self._file is None else self._file
            file.write(text)
            file.flush()
        if self.chain and callable(self.before):
            self.before(number, frame)

    def _lines(self, frame: FrameType | None) -> Iterator[str]:
        if self._every:
            frames = frames_by_thread()
            for place, task in reversed(list(enumerate(self._process.tasks))[1:]):
                if task.ident in frames:
                    yield f"Thread 0x{self._process.pid + place:016x} (most recent call first):\n"
                    yield from _stack(frames[task.ident])
                    yield "\n"
        yield f"Current thread 0x{self._process.pid:016x} (most recent call first):\n"
        yield from _stack(frame)


def _stack(frame: FrameType | None) -> Iterator[str]:
    shown = 0
    while frame is not None and shown < _DEEPEST:
        if not is_ours(frame):
            shown += 1
            yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n'
        frame = frame.f_back


_ENABLED: Extra[dict[SimProcess, bool]] = Extra("faulthandler")


def _noting(original: Callable[_P, bool | None]) -> Callable[_P, bool | None]:
    name = original.__name__

    @functools.wraps(original)
    def do(*args: _P.args, **kwargs: _P.kwargs) -> bool | None:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(*args, **kwargs)
        enabled = runtime.extras.setdefault(_ENABLED, {})
        was = enabled.get(process, False)
        if name != "is_enabled":
            enabled[process] = name == "enable"
        return None if name == "enable" else was

    return do


def _register(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register(signum: int, file: int | TextIO | None = None, all_threads: bool = True, chain: bool = False) -> None:
        process = current_process()
        if process is None:
            original(signum, file=sys.stderr if file is None else file, all_threads=all_threads, chain=chain)
            return
        number = _checked(signum)
        before = process.handlers.get(number)
        if isinstance(before, _Report):  # registered again
            before = before.before
        report = process.handlers[number] = _Report(process, file, bool(all_threads), before)
        report.chain = bool(chain)

    return register


def _unregister(original: Callable[[int], bool]) -> Callable[[int], bool]:
    @functools.wraps(original)
    def unregister(signum: int, /) -> bool:
        process = current_process()
        if process is None:
            return original(signum)
        number = _checked(signum)
        report = process.handlers.get(number)
        if not isinstance(report, _Report):
            return False
        if report.before is None:
            del process.handlers[number]
        else:
            process.handlers[number] = report.before
        return True

    return unregister


def _checked(number: int) -> int:
    if number in _FATAL:
        raise RuntimeError(f"signal {int(number)} cannot be registered, use enable() instead")
    if not 1 <= number < _signal.NSIG:
        raise ValueError("signal number out of range")
    return int(number)


_MADE: tuple[tuple[str, Make], ...] = (
    ("enable", _noting),
    ("disable", _noting),
    ("is_enabled", _noting),
    ("dump_traceback_later", on_ranks(lambda *_, **__: None)),
    ("cancel_dump_traceback_later", on_ranks(lambda *_, **__: None)),
    ("register", _register),
    ("unregister", _unregister),
)
_REPLACEMENTS = tuple(Replacement(faulthandler, name, make) for name, make in _MADE if hasattr(faulthandler, name))


def install(patches: Patches) -> None:
    """Keep a rank's reports away from the host's signals."""
    patches.redirect(_REPLACEMENTS)
