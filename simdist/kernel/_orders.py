"""A policy that follows a list: at each choice among several tasks, which of them goes first.

A search writes such lists. It gives a *guide*, which chooses after the end of the list, and learns what each task
*touches* on its turn: state that other ranks may see or change. Requests to stores, and messages to a receiver of any
source, take no time, so that their order is that of the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from simdist.kernel._task import Task, TaskState

__all__ = ["BEYOND", "EVERYTHING", "Guide", "OrderPolicy", "guided_by"]

EVERYTHING = "everything"
"""The thing that an action touches if any turn of any rank may depend on it."""
BEYOND = "beyond"
"""The thing that an action touches if its effects are not reported in full, such as those on a socket: no two turns of
the run count as independent."""


class Guide(Protocol):
    """Chooses the next task."""

    def choose(self, tasks: Sequence[Task]) -> int:
        """Return which of the tasks that can run goes next; also called for a single one."""
        ...

    def woke(self, task: Task) -> None:
        """Note that a task became runnable."""

    def touch(self, thing: Hashable, *, writes: bool) -> None:
        """Note that the running task reads or changes something that others may read or change."""


_guide: ContextVar[Guide | None] = ContextVar("guide of the orders", default=None)


@contextmanager
def guided_by(guide: Guide) -> Iterator[None]:
    """Let the guide lead the worlds under a policy "order" inside this context."""
    token = _guide.set(guide)
    try:
        yield
    finally:
        _guide.reset(token)


def _ignore(thing: Hashable, *, writes: bool) -> None:
    pass


class OrderPolicy:
    """Runs the task with the given place first, of those that can run in the order in which they became runnable.

    After the end of the list it runs the first of them.
    """

    preempts = True

    def __init__(self, places: Sequence[int]) -> None:
        self._tasks: list[Task] = []
        self._places = iter(places)
        self._guide = _guide.get()
        # Set without a guide, too: where it is not None, requests wait for their turn.
        self.touch: Callable[..., None] = _ignore if self._guide is None else self._guide.touch

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""
        self._tasks.append(task)
        if self._guide is not None:
            self._guide.woke(task)

    def pop(self) -> Task:
        """Take the task whose turn it is."""
        tasks = self._tasks
        for task in tasks:
            if task.state is not TaskState.READY or task.paused:  # killed or stopped meanwhile, so there is no choice
                tasks.remove(task)
                return task
        if self._guide is not None:
            return tasks.pop(self._guide.choose(tasks))
        place = next(self._places, 0) if len(tasks) > 1 else 0
        return tasks.pop(min(place, len(tasks) - 1))

    def extra_ns(self, usual_ns: int) -> int:
        """Subtract all of the usual time: nothing takes time."""
        return -usual_ns

    def jitter_ns(self, most_ns: int) -> int:
        """Return 0: only orders differ."""
        return 0

    def __len__(self) -> int:
        return len(self._tasks)
