"""Tasks done by the workers of a Dask cluster, on any number of machines.

The cluster is an ordinary Dask cluster, with its scheduler, dashboard and retries. If a worker dies in the middle of a
task, nothing is lost, since the scheduler gives the task to another worker; a task during which several workers die in
a row is blamed for it (`KilledWorker`).

- A worker process runs one world at a time, so workers with one thread each (`dask worker --nthreads 1`) are best.
- Workers import simdist and the program from their own installation, which needs the same versions. Folders on the path
  of the searching process are on theirs, too, where they exist (a shared file system, or one machine).
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

_ANSWERS_S = 10.0  # real seconds for the scheduler's answer
_COUNT_EVERY_S = 2.0  # real seconds between two queries of the number of workers

_one_at_a_time = threading.Lock()


class DaskCluster:
    """The workers of a scheduler.

    Raises:
        ArgumentError: the extra is not installed, or no scheduler answers at the address.
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
        """Return how many workers the scheduler has, or had a moment ago."""
        now_s = time.monotonic()  # noqa: TID251  # on the machine of the search
        if now_s - self._counted_s >= _COUNT_EVERY_S:
            self._counted_s = now_s
            try:
                self._count = len(self._client.nthreads())
            except (OSError, RuntimeError):
                self._count = 0  # the scheduler is gone
        return self._count

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Answer]:
        """Submit tasks for one worker."""
        future: Future[Answer] = self._executor.submit(_do_there, self._path, start, tasks, known)
        return future

    def renew(self) -> None:
        """Do nothing: only the cluster starts its workers."""

    def close(self, *, at_once: bool) -> None:
        """Make the workers forget the program; their current tasks run to their end, without waiting for them."""
        with contextlib.suppress(OSError, RuntimeError):  # the cluster may be gone
            self._executor.shutdown(wait=False)  # tasks that have not begun are cancelled
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
