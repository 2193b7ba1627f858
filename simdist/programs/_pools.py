"""Who does tasks beside this process: processes of this machine (`_processes.py`), or those of a Dask cluster
(`_cluster.py`).

A worker process makes its program once, for all tasks of one search: `do` keeps it until tasks of another search arrive
or `end` is called.
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
    """Does tasks, here or in another process."""

    @abstractmethod
    def do(self, task: Task) -> Result:
        """Do one. What it comes to depends on nothing else."""

    def learnt(self) -> Mapping[str, object]:
        """What it has found out so far that saves others work, by name."""
        return {}

    def learn(self, found: Mapping[str, object]) -> None:
        """Another one has found this out."""

    def killed(self, number: int, task: Task, how: str) -> Result:
        """What it comes to that worker processes die of a task each time, as "was killed by SIGSEGV".

        Raises:
            SimdistError: that is no result, unless a worker has one for it.
        """
        raise SimdistError(
            f"every worker process that began task {number} died, the last one {how}: they ran out of memory, were "
            "killed, or crashed. One process alone (--workers 1) shows what happens"
        )


Start = Callable[[], AbstractContextManager[Worker[Any, Any]]]
Answer = tuple[list[Any], dict[str, Any]]
"""The results of some tasks, and what the worker has learnt that those who asked did not know."""


class Pool(Protocol):
    """Workers in other processes."""

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """What is raised by a future whose worker died; the pool goes on. The text says how it died."""
        ...

    @property
    def unborn(self) -> tuple[type[BaseException], ...]:
        """What is raised by a future for which no worker could be started."""
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

    def renew(self) -> None:
        """Start others in place of workers that died."""
        ...

    def close(self, *, at_once: bool) -> None:
        """Let them end; `at_once` in the middle of what they do."""
        ...


def unreachable(error: BaseException) -> str:
    """That another process can't have the program, in a sentence."""
    said = f"{type(error).__name__}: {error}"
    return f"another process can't import the program ({said}); define it in a module, or leave workers out"


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
            raise ArgumentError("workers", [unreachable(error)]) from None
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
