"""Functions that a rank may not call, because what they do would be outside the simulation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simdist.errors import UnsupportedError
from simdist.process._runtime import current_process

__all__ = ["refused"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def refused(text: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a maker of replacements that raise UnsupportedError on a rank.

    `text` says what is not supported, why, and what is.
    """

    def wrap(original: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(original)
        def refuse(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            process = current_process()
            if process is None:
                return original(*args, **kwargs)
            raise UnsupportedError(f"rank {process.rank}: {text}")

        return refuse

    return wrap
