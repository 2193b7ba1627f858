"""Puts back what a world has changed: every step is taken, whatever happens on the way.

An error in one step does not keep the others from being taken. It may come before the step has done anything (Ctrl-C,
no memory), so a step that fails is taken again: steps can be repeated. If this code itself is interrupted, another
`close` takes the remaining steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

__all__ = ["Undoing", "call_all"]

_T = TypeVar("_T")
_Step = Callable[[], object]


class Undoing:
    """Steps to be taken at the end, the last first.

    Example:
        >>> undoing = Undoing()
        >>> undoing.add(print)
        >>> undoing.close()
        <BLANKLINE>
    """

    __slots__ = ("_steps",)

    def __init__(self, steps: Iterable[_Step] = ()) -> None:
        self._steps = list(steps)

    def add(self, step: _Step) -> None:
        """Add a step, which is taken before those that are there already."""
        self._steps.append(step)

    def enter(self, manager: AbstractContextManager[_T]) -> _T:
        """Enter a context; `close` leaves it in its turn."""
        entered = manager.__enter__()
        self._steps.append(lambda: manager.__exit__(None, None, None))
        return entered

    def close(self) -> None:
        """Take all steps that are left.

        Raises:
            BaseException: the first error of a step, after all were taken.
        """
        steps = self._steps
        first: BaseException | None = None
        while steps:
            try:
                steps[-1]()
            except BaseException as error:
                first = first or error
                with contextlib.suppress(BaseException):
                    steps[-1]()
            steps.pop()
        if first is not None:
            raise first


def call_all(*steps: _Step) -> None:
    """Take these steps, the first first, as `Undoing.close` does."""
    Undoing(reversed(steps)).close()
