"""Putting back what a world has changed: every step is taken, whatever happens on the way.

An error in one step does not keep the others from being taken. It may strike before the step has done anything (Ctrl-C,
no memory), so a step that fails is taken again: steps can be repeated. What interrupts this code itself leaves the
rest for another `close`.
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
    """Steps to be taken in the end, the last first.

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
        """Take this step, too, and before all that are there."""
        self._steps.append(step)

    def enter(self, manager: AbstractContextManager[_T]) -> _T:
        """Enter a context, which is left in its turn."""
        entered = manager.__enter__()
        self._steps.append(lambda: manager.__exit__(None, None, None))
        return entered

    def close(self) -> None:
        """Take all steps that are left.

        Raises:
            BaseException: the first that a step raised, when all were taken.
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
