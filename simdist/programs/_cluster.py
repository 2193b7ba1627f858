"""Tasks done by the workers of a Dask cluster, on any number of machines.

The cluster is Dask's as it is: its scheduler, its dashboard, its retries. A worker that dies in the middle of a task
loses nothing, since the scheduler gives the task to another one; a task during which several die one after the other
counts as their death (`KilledWorker`).

- A worker process runs one world at a time, so those with one thread each (`dask worker --nthreads 1`) are used best.
- Workers import simdist and the program from where they are: the same versions have to be installed there. Folders on
  the path of the process that searches are on theirs, too, where they exist (a shared file system, or one machine).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from asyncio import CancelledError as AsyncCancelledError
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

from simdist.errors import ArgumentError
from simdist.programs._pools import Answer, do, end

__all__ = ["DaskCluster"]

_ANSWERS_S = 10.0  # real seconds for a scheduler that is there
_COUNT_EVERY_S = 2.0  # real seconds between two questions how many workers there are

_one_at_a_time = threading.Lock()


class DaskCluster:
    """The workers of the scheduler at an address.

    Raises:
        ArgumentError: the extra is not installed, or no scheduler answers there.
    """

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            said = "Dask is not installed; `pip install 'simdist[cluster]'` brings it"
            raise ArgumentError("scheduler", [said]) from None
        self.broken: tuple[type[BaseException], ...] = (distributed.KilledWorker,)
        self.unborn: tuple[type[BaseException], ...] = ()
        self.lost: tuple[type[BaseException], ...] = (
            CancelledError,
            AsyncCancelledError,
            OSError,
        )  # its scheduler is gone
        try:
            self._client: Any = distributed.Client(address, timeout=_ANSWERS_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ArgumentError("scheduler", [f"none answers at {address} ({error})"]) from None
        self._executor = self._client.get_executor(pure=False)
        self._counted_s = -_COUNT_EVERY_S
        self._count = 0
        self._path = [str(Path(each).absolute()) for each in sys.path]

    def size(self) -> int:
        """How many workers the scheduler has, or had a moment ago."""
        now_s = time.monotonic()  # noqa: TID251  # of the machine on which the search runs
        if now_s - self._counted_s >= _COUNT_EVERY_S:
            self._counted_s = now_s
            try:
                self._count = len(self._client.nthreads())
            except (OSError, RuntimeError):
                self._count = 0  # the scheduler is gone
        return self._count

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Have one do these tasks."""
        future: Future[Answer] = self._executor.submit(_do_there, self._path, start, tasks, known)
        return future

    def renew(self) -> None:
        """Nothing to do: the scheduler's machines have workers, or have none."""

    def close(self, *, at_once: bool) -> None:
        """Let the workers forget the program; what they do now goes on to its end, and nobody waits for it."""
        with contextlib.suppress(OSError, RuntimeError):  # the cluster may be gone
            self._executor.shutdown(wait=False)  # what has not begun is cancelled
            if not at_once:
                self._client.run(_end_there)
        self._client.close()


def _do_there(path: Sequence[str], start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Answer:
    with _one_at_a_time:
        sys.path += [folder for folder in path if folder not in sys.path and Path(folder).exists()]
        return do(start, tasks, known)


def _end_there() -> None:
    with _one_at_a_time:
        end()
