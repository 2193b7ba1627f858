"""Pools of workers outside this process: processes of this machine (`_processes.py`), or of a Dask cluster.

A worker process makes its program once, for all tasks of one search: `do` keeps it until a task of another search
arrives or `end` is called.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from simdist.errors import ArgumentError, SimdistError

__all__ = ["Answer", "Pool", "Start", "Worker", "do", "end", "unreachable"]

Task = TypeVar("Task")
Result = TypeVar("Result")


class Worker(ABC, Generic[Task, Result]):
    """A worker for tasks, in this process or another."""

    @abstractmethod
    def do(self, task: Task) -> Result:
        """Do one task. The result depends on nothing else."""

    def learnt(self) -> Mapping[str, object]:
        """Return knowledge from its tasks that saves work for other workers, by name."""
        return {}

    def learn(self, found: Mapping[str, object]) -> None:
        """Take over another worker's knowledge."""

    def killed(self, number: int, task: Task, how: str) -> Result:
        """Return the result of a task of which every worker process dies; `how` is like "was killed by SIGSEGV".

        Raises:
            SimdistError: by default.
        """
        raise SimdistError(
            f"every worker process that began task {number} died, the last one {how}: they ran out of memory, were "
            "killed, or crashed. One process alone (--workers 1) shows what happens"
        )


Start = Callable[[], AbstractContextManager[Worker[Any, Any]]]
Answer = tuple[list[Any], dict[str, Any]]
"""The results of some tasks, and the worker's knowledge that the other process lacked."""


class Pool(Protocol):
    """Workers in other processes."""

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """The errors of a future whose worker died, while the pool goes on. Their text says how it died."""
        ...

    @property
    def unborn(self) -> tuple[type[BaseException], ...]:
        """The errors of a future for which no worker could be started."""
        ...

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """The errors of a future whose tasks no worker does any more; the pool may go on."""
        ...

    def size(self) -> int:
        """Return the current number of workers."""
        ...

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Submit tasks for one worker; `start` is a pickled `Start`."""
        ...

    def renew(self) -> None:
        """Start workers in place of dead ones."""
        ...

    def close(self, *, at_once: bool) -> None:
        """End the workers; with `at_once` in the middle of their tasks."""
        ...


def unreachable(error: BaseException) -> str:
    """Return a sentence: another process can't import the program."""
    said = f"{type(error).__name__}: {error}"
    return f"another process can't import the program ({said}); define it in a module, or leave workers out"


_begun: tuple[bytes, AbstractContextManager[Worker[Any, Any]], Worker[Any, Any]] | None = None  # in a worker process


def do(start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Answer:
    """Do tasks in this process, a worker.

    Raises:
        ArgumentError: `start` needs modules that can't be imported here.
    """
    global _begun
    if _begun is not None and _begun[0] != start:
        end()
    if _begun is None:
        try:
            life = pickle.loads(start)()
        except (AttributeError, ImportError) as error:
            raise ArgumentError("workers", [unreachable(error)]) from None
        _begun = start, life, life.__enter__()
    worker = _begun[2]
    worker.learn(known)
    found = [worker.do(task) for task in tasks]
    return found, {name: each for name, each in worker.learnt().items() if name not in known}


def end() -> None:
    """Forget this worker process's program."""
    global _begun
    if _begun is not None:
        life, _begun = _begun[1], None
        life.__exit__(None, None, None)
