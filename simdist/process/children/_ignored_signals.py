"""Signals that a process ignores: a program that it starts goes on ignoring them, and no others.

A real program inherits what the host process ignores. So while it is started, the host process ignores what the rank
does. If the host process has ignored SIGINT since before Python began, as a shell has it for jobs in the background,
its ranks ignore it too, as processes would that it starts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from simdist.inside.python import set_signal_disposition, signal_disposition

if TYPE_CHECKING:
    from simdist.process._process import SimProcess

__all__ = ["ignored_by_host", "program_ignores"]

# Python ignores these itself, but programs that it starts do not.
_OF_PYTHON = {getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name)}
_DEFAULT, _IGNORE = int(signal.SIG_DFL), int(signal.SIG_IGN)


def ignored_by_host() -> list[int]:
    """The signals that a process of this program ignores when it begins."""
    return [signal.SIGINT] if signal_disposition(signal.SIGINT) == _IGNORE else []


@contextmanager
def program_ignores(process: SimProcess) -> Iterator[None]:
    """A context in which a program that starts ignores what the process does."""
    before: dict[int, int] = {}
    try:
        for number in (signal.SIGINT, *(number for number in process.handlers if number != signal.SIGINT)):
            if number in _OF_PYTHON:
                continue
            ignores = process.handlers.get(number) == signal.SIG_IGN
            now = signal_disposition(number)
            if ignores != (now == _IGNORE):
                before[number] = now
                set_signal_disposition(number, _IGNORE if ignores else _DEFAULT)
        yield
    finally:
        for number, handler in before.items():
            set_signal_disposition(number, handler)
