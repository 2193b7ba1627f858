"""Tasks done side by side: in this process, and in others that start when there is enough to do.

This process has run the program already and begins at once; the others first import what it has imported. Results are
given in the order of the tasks, so that it does not matter who did what. What one worker has learnt it tells, with its
results, so that no other finds it out again.

- Tasks are drawn a little ahead of their results, and never after the caller's iterator has ended.
- A worker that dies (killed, out of memory, crashed in C code) ends its pool. What the pool had is done again by a new
  one, and `died` counts. Where pools die one after the other and nothing gets done, a task is to blame, or there can be
  no workers: that is an error, since trying it here could end this process, too.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing import connection
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from simdist.errors import ArgumentError, SimdistError

__all__ = ["Worker", "Workers", "cores", "died_words"]

_FEW = 40  # tasks that are sooner done here than processes are started
_AT_ONCE = 4  # tasks that a process gets at a time; no more, so that all end at nearly the same time
_PATIENCE_S = 2  # for a process that is to end
_AHEAD = 2  # times as many wait for it, so that it need not wait for this process
_DEATHS = 3  # one after the other

Task = TypeVar("Task")
Result = TypeVar("Result")


class Worker(ABC, Generic[Task, Result]):
    """Does tasks, here or in another process."""

    @abstractmethod
    def do(self, task: Task) -> Result:
        """Do one. What it comes to depends on nothing else."""

    def learnt(self) -> dict[str, Any]:
        """What it has found out so far that saves others work, by name."""
        return {}

    def learn(self, found: Mapping[str, Any]) -> None:
        """Another one has found this out."""


_Start = Callable[[], AbstractContextManager[Worker[Any, Any]]]
_Part = list[tuple[int, Task]]

_start: bytes = b""  # of a worker process
_begun: tuple[AbstractContextManager[Worker[Any, Any]], Worker[Any, Any]] | None = None


class Workers(Generic[Task, Result]):
    """`here`, and `count` - 1 others, each of which `start` makes in a process of its own.

    Raises:
        ArgumentError: `start` can't be sent to another process.
    """

    def __init__(self, here: Worker[Task, Result], start: _Start, count: int) -> None:
        self.died = 0  # workers, or pools of them
        self._here = here
        self._others = count - 1
        self._start = b""
        self._before = multiprocessing.active_children()
        self._pool: ProcessPoolExecutor | None = None
        self._away: dict[Future[tuple[list[Result], dict[str, Any]]], _Part[Task]] = {}
        self._again: deque[_Part[Task]] = deque()  # what workers had that died
        self._in_vain = 0  # deaths since the last result
        if self._others:
            try:
                self._start = pickle.dumps(start)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ArgumentError("a search", [_unreachable(error)]) from error

    def run(self, tasks: Iterable[Task], count: int | None = None) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, in their order. `count` is how many there are; None: nobody knows, or many."""
        if not self._others or (count is not None and count < _FEW):
            yield from ((task, self._here.do(task)) for task in tasks)
            return
        source = enumerate(tasks)
        mine: deque[tuple[int, Task]] = deque()
        done: dict[int, tuple[Task, Result]] = {}
        for number in itertools.count():
            while number not in done:
                self._collect(done)
                while len(self._away) < _AHEAD * self._others:
                    part = self._again.popleft() if self._again else list(itertools.islice(source, _AT_ONCE))
                    if not part:
                        break
                    self._send(part)
                mine.extend(itertools.islice(source, 0 if mine else _AT_ONCE))
                if mine:
                    at, task = mine.popleft()
                    done[at] = task, self._here.do(task)
                elif self._away:
                    wait(self._away, return_when=FIRST_COMPLETED)
                elif number not in done and not self._again:
                    return
            yield done.pop(number)

    def _send(self, part: _Part[Task]) -> None:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._others, context, _begin, (self._start,))
        try:
            future = self._pool.submit(_do, [task for _, task in part], self._here.learnt())
        except BrokenProcessPool:
            self._again.append(part)
            self._renew()
        else:
            self._away[future] = part

    def _collect(self, done: dict[int, tuple[Task, Result]]) -> None:
        """Take what has come back."""
        broken = False
        for future in [each for each in self._away if each.done()]:
            try:
                found, learnt = future.result()
            except BrokenProcessPool:
                broken = True
                continue
            part = self._away.pop(future)
            done.update({at: (task, result) for (at, task), result in zip(part, found, strict=True)})
            self._here.learn(learnt)
            self._in_vain = 0
        if broken:
            self._renew()

    def _renew(self) -> None:
        """Give up a pool in which a worker has died; what it had is done again, the earliest first.

        Raises:
            SimdistError: that has happened too often.
        """
        assert self._pool is not None
        self._again = deque(sorted([*self._again, *self._away.values()], key=lambda part: part[0][0]))
        self._away.clear()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        self.died += 1
        self._in_vain += 1
        if self._in_vain == _DEATHS:
            at = self._again[0][0][0]
            raise SimdistError(
                f"worker processes died {_DEATHS} times one after the other, at task {at} or soon after it: they were "
                "killed, ran out of memory, or crashed; a script that starts workers needs "
                "`if __name__ == '__main__':`. One process alone (--workers 1) shows what happens"
            )

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is None:
            return
        if self._away or error is not None:  # it was interrupted, or has enough: what is under way is wanted no more
            for child in multiprocessing.active_children():
                if child not in self._before:
                    child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def died_words(died: int) -> str:
    """That workers died, in a sentence."""
    times = "once" if died == 1 else f"{died} times"
    return f"worker processes died {times}; what they had begun was done again"


def _unreachable(error: BaseException) -> str:
    said = f"{type(error).__name__}: {error}"
    return f"workers: another process can't import the program ({said}); define it in a module, or leave workers out"


def _begin(start: bytes) -> None:
    global _start
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the results is interrupted
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _start = start


def _end(number: int, frame: FrameType | None) -> None:
    """The run that is under way clears up after itself, if it does so soon."""
    signal.alarm(_PATIENCE_S)
    sys.exit(1)


def _end_with_parent() -> None:
    """A worker whose parent is interrupted, or killed, would wait for ever for something to do."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _do(tasks: list[Any], known: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    global _begun
    if _begun is None:
        try:
            start = pickle.loads(_start)
        except (AttributeError, ImportError) as error:
            raise ArgumentError("a search", [_unreachable(error)]) from None
        life = start()
        _begun = life, life.__enter__()  # for as long as the process lives
    worker = _begun[1]
    worker.learn(known)
    found = [worker.do(task) for task in tasks]
    return found, {name: each for name, each in worker.learnt().items() if name not in known}
