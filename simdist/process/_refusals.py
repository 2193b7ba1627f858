"""Functions that a rank may not call, because what they do would be outside the simulation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from simdist.errors import UnsupportedError
from simdist.process._runtime import current_process

__all__ = ["refused"]


def refused(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes the replacement of a function that is refused; `text` says what is not supported, why, and what is.

    The replacement raises UnsupportedError on a rank.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            process = current_process()
            if process is None:
                return original(*args, **kwargs)
            raise UnsupportedError(f"rank {process.rank}: {text}")

        return refuse

    return wrap
