"""Reports, in `RunResult.shared_state`, what a rank sets for all ranks because it can't be kept apart."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

from simdist.frames import user_line
from simdist.process._runtime import current_process, current_runtime

__all__ = ["report", "reporting"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def reporting(what: str, end: str = "which stays") -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a maker of functions that report each call by a rank: `what` it sets, which rank, where, and the `end`."""

    def make(original: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(original)
        def do(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            name = f" {args[0]!r}" if args and isinstance(args[0], str) else ""
            report(f"{what}{name}", sys._getframe(1), end)
            return original(*args, **kwargs)

        return do

    return make


def report(what: str, frame: FrameType | None, end: str) -> None:
    """Report `what`, if the caller is a rank."""
    runtime, process = current_runtime(), current_process()
    if runtime is not None and process is not None:
        runtime.left_behind.stays[f"{what}, set by rank {process.rank}{user_line(frame)}, {end}"] = None
