"""Who does tasks beside this process: worker processes of this machine, or (`_cluster.py`) those of a Dask cluster.

A worker process makes its program once, for all tasks of one search: `do` keeps it until tasks of another search arrive
or `end` is called.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing import connection
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from simdist.errors import ArgumentError

__all__ = ["Answer", "Pool", "Processes", "Start", "Worker", "do", "end", "unreachable"]

_PATIENCE_S = 2  # for a process that is to end

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


Start = Callable[[], AbstractContextManager[Worker[Any, Any]]]
Answer = tuple[list[Any], dict[str, Any]]
"""The results of some tasks, and what the worker has learnt that those who asked did not know."""


class Pool(Protocol):
    """Workers in other processes. Results of a future raise one of `broken` if its worker died."""

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """What is raised when the pool can't go on; another one has to be made."""
        ...

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """What is raised by a future whose tasks nobody does any more; the pool may go on."""
        ...

    def size(self) -> int:
        """How many workers there are now."""
        ...

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Have one do these tasks; `start` is a pickled `Start`."""
        ...

    def close(self, *, at_once: bool) -> None:
        """Let them end; `at_once` in the middle of what they do."""
        ...


class Processes:
    """So many processes of this machine, which start with the first task."""

    broken: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    lost: tuple[type[BaseException], ...] = ()

    def __init__(self, count: int) -> None:
        self._count = count
        self._before = multiprocessing.active_children()
        self._executor: ProcessPoolExecutor | None = None

    def size(self) -> int:
        """As many as were asked for."""
        return self._count

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Have one do these tasks."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(self._count, multiprocessing.get_context("spawn"), _begin)
        return self._executor.submit(do, start, tasks, known)

    def close(self, *, at_once: bool) -> None:
        """Wait for their end."""
        if self._executor is None:
            return
        if at_once:
            for child in multiprocessing.active_children():
                if child not in self._before:
                    child.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)


def unreachable(error: BaseException) -> str:
    """That another process can't have the program, in a sentence."""
    said = f"{type(error).__name__}: {error}"
    return f"workers: another process can't import the program ({said}); define it in a module, or leave workers out"


_begun: tuple[bytes, AbstractContextManager[Worker[Any, Any]], Worker[Any, Any]] | None = None  # of a worker process


def do(start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Answer:
    """Do tasks in this process, which is a worker.

    Raises:
        ArgumentError: what `start` needs can't be imported here.
    """
    global _begun
    if _begun is not None and _begun[0] != start:
        end()
    if _begun is None:
        try:
            life = pickle.loads(start)()
        except (AttributeError, ImportError) as error:
            raise ArgumentError("a search", [unreachable(error)]) from None
        _begun = start, life, life.__enter__()
    worker = _begun[2]
    worker.learn(known)
    found = [worker.do(task) for task in tasks]
    return found, {name: each for name, each in worker.learnt().items() if name not in known}


def end() -> None:
    """Forget the program of this worker process."""
    global _begun
    if _begun is not None:
        life, _begun = _begun[1], None
        life.__exit__(None, None, None)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the results is interrupted
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()


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
