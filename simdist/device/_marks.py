"""Moments on the time line of a stream, which may depend on other ranks, and so may not be known yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from simdist.kernel import Task

__all__ = ["Cause", "Mark", "after", "latest"]

_due: list[list[Callable[[], None]]] = []  # callbacks of the marks that are being settled, the next one last


class Cause(Protocol):
    """The reason why a moment is not known yet, for reports."""

    def describe(self) -> str:
        """Describe it in words that a user knows."""
        ...

    def waits_for(self) -> Iterable[Task]:
        """Return the tasks that could make the moment known."""
        ...


class Mark:
    """The moment at which something on a stream ends: `at_ns`, None until it is known. It may lie in the future.

    Example:
        >>> mark, seen = Mark(), []
        >>> mark.when_known(lambda: seen.append(mark.at_ns))
        >>> mark.settle(5)
        >>> seen
        [5]
    """

    __slots__ = ("at_ns", "callbacks", "cause", "clock")

    def __init__(self, at_ns: int | None = None, cause: Cause | None = None) -> None:
        self.at_ns = at_ns
        self.cause = cause  # why it is not known
        self.clock: dict[tuple[int, int], int] | None = None  # kernels over by then, in a world that looks for races
        self.callbacks: list[Callable[[], None]] = []  # for when it is known; see `when_known`

    # -- for a task that parks until it is known -----------------------------------------------------------------

    def describe(self) -> str:
        """Describe what the task does, and what that depends on."""
        return "synchronize with a stream" + ("" if self.cause is None else f" that waits for {self.cause.describe()}")

    def waits_for(self) -> Iterable[Task]:
        """Return the tasks that could make the moment known."""
        return () if self.cause is None else self.cause.waits_for()

    # -- the moment ----------------------------------------------------------------------------------------------

    def settle(self, at_ns: int) -> None:
        """Set the moment. Does nothing the second time."""
        if self.at_ns is not None:
            return
        self.at_ns = at_ns
        self.cause = None  # streams keep marks, and what caused them would be kept with its tensors
        callbacks, self.callbacks = self.callbacks, []
        if _due:  # a callback of another mark settles this one: its callbacks are next
            _due.append(callbacks[::-1])
            return
        # Without recursion: thousands of kernels may wait for one another.
        _due.append(callbacks[::-1])
        try:
            while _due:
                if _due[-1]:
                    _due[-1].pop()()
                else:
                    _due.pop()
        finally:
            _due.clear()

    def when_known(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the moment is known; at once if it is."""
        if self.at_ns is None:
            self.callbacks.append(callback)
        else:
            callback()


def latest(marks: Sequence[Mark]) -> Mark:
    """Return the last of some moments."""
    if len(marks) == 1:
        only = marks[0]
        return only if only.at_ns is None else Mark(only.at_ns)
    unknown = [mark for mark in marks if mark.at_ns is None]
    if not unknown:
        return Mark(max([mark.at_ns or 0 for mark in marks], default=0))
    result = Mark(cause=unknown[0].cause)
    left = len(unknown)

    def one_less() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            result.settle(max(mark.at_ns or 0 for mark in marks))

    for mark in unknown:
        mark.when_known(one_less)
    return result


def after(mark: Mark, duration_ns: int) -> Mark:
    """Return the moment `duration_ns` after another."""
    if mark.at_ns is not None:
        return Mark(mark.at_ns + duration_ns)
    result = Mark(cause=mark.cause)
    mark.when_known(lambda: result.settle((mark.at_ns or 0) + duration_ns))
    return result
