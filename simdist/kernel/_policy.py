"""Who goes next among the tasks that are runnable at the same instant, and among requests that take equally long."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from simdist.kernel._streams import stream
from simdist.kernel._task import Task

__all__ = ["FifoPolicy", "Policy", "RandomPolicy", "make_policy"]


class Policy(Protocol):
    """A bag of runnable tasks. `push` and `pop` are hot."""

    preempts: bool
    """True if a thread is to be interrupted where it takes a lock although it need not wait."""

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""

    def pop(self) -> Task:
        """Take the next task to run.

        Raises:
            IndexError: there is none.
        """
        ...

    def extra_ns(self, usual_ns: int) -> int:
        """How much longer than usual something takes on its way; for what would meet others at one instant."""
        ...

    def __len__(self) -> int: ...


class FifoPolicy(deque[Task]):
    """First come, first served: the order in which tasks became runnable."""

    preempts = False
    push = deque.append
    pop = deque.popleft  # the other end of the deque, on purpose

    def extra_ns(self, usual_ns: int) -> int:
        """None."""
        return 0


class RandomPolicy:
    """Every runnable task is equally likely; the draws come from the stream "schedule" of the seed.

    Half of what is on its way takes as long as usual, the rest up to nine times as long: long enough for another rank
    to ask and answer in between, as happens on machines. These draws come from the stream "jitter".
    """

    preempts = True
    _BLOCK = 1024
    _LONGEST = 8  # times the usual length, on top of it

    def __init__(self, seed: int) -> None:
        self._tasks: list[Task] = []
        self._generator = stream(seed, "schedule")
        self._draws: list[int] = []
        self._jitter = stream(seed, "jitter")

    def push(self, task: Task) -> None:
        """Add a task that became runnable."""
        self._tasks.append(task)

    def extra_ns(self, usual_ns: int) -> int:
        """A random part of eight times the usual length, or none."""
        drawn = int(self._jitter.integers(-self._LONGEST * usual_ns, self._LONGEST * usual_ns + 1))
        return max(0, drawn)

    def pop(self) -> Task:
        """Take a runnable task at random."""
        count = len(self._tasks)
        if count < 2:
            return self._tasks.pop()
        if not self._draws:
            self._draws = self._generator.integers(0, 2**62, self._BLOCK).tolist()
        return self._tasks.pop(self._draws.pop() % count)

    def __len__(self) -> int:
        return len(self._tasks)


def make_policy(name: str, seed: int) -> Policy:
    """The policy called `name`: "fifo" or "random".

    Raises:
        ValueError: there is no such policy.
    """
    if name == "fifo":
        return FifoPolicy()
    if name == "random":
        return RandomPolicy(seed)
    raise ValueError(f"unknown scheduling policy {name!r}; expected 'fifo' or 'random'")
