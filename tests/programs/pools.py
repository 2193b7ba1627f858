"""Pools that stand for those of worker processes: what they get is done at once, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from simdist.programs import _pools as pools_of_workers
from simdist.programs import _workers as workers_room
from simdist.programs._processes import DiedError, UnbornError

__all__ = ["Pools", "standing_in"]


@dataclass
class Pools:
    """What pools are made of: at each of these submissions, from 1, a worker dies; `unborn` ones could not begin.

    Of `deadly` tasks workers die each time.
    """

    dies_at: tuple[int, ...] = ()
    unborn: bool = False
    deadly: Callable[[Any], bool] = lambda task: False
    made: int = 0
    renewed: int = 0
    submitted: list[list[Any]] = field(default_factory=list)

    def make(self, count: int, warm: bytes) -> _Pool:
        """As `Processes`."""
        self.made += 1
        return _Pool(self, count)


@dataclass
class _Pool:
    pools: Pools
    count: int
    life: Any = None
    submissions: int = 0
    broken: tuple[type[BaseException], ...] = (DiedError,)
    unborn: tuple[type[BaseException], ...] = (UnbornError,)
    lost: tuple[type[BaseException], ...] = ()

    def size(self) -> int:
        return self.count

    def submit(self, start: bytes, tasks: Sequence[Any], known: Mapping[str, Any]) -> Future[Any]:
        self.submissions += 1
        future: Future[Any] = Future()
        if self.submissions in self.pools.dies_at or any(map(self.pools.deadly, tasks)):
            error = UnbornError if self.pools.unborn else DiedError
            future.set_exception(error("was killed by SIGKILL"))
            return future
        self.pools.submitted.append(list(tasks))
        pools_of_workers._begun = self.life
        try:
            future.set_result(pools_of_workers.do(start, tasks, known))
        except Exception as error:
            future.set_exception(error)
        self.life, pools_of_workers._begun = pools_of_workers._begun, None
        return future

    def renew(self) -> None:
        self.pools.renewed += 1

    def close(self, *, at_once: bool) -> None:
        pools_of_workers._begun, self.life = self.life, None
        pools_of_workers.end()


@contextlib.contextmanager
def standing_in(
    monkeypatch: pytest.MonkeyPatch,
    *dies_at: int,
    unborn: bool = False,
    deadly: Callable[[Any], bool] = lambda task: False,
    few: int = workers_room.FEW,
) -> Iterator[Pools]:
    """Inside, workers are in such pools, and fewer than `few` tasks are done without any."""
    pools = Pools(dies_at, unborn, deadly)
    with monkeypatch.context() as patched:
        patched.setattr(workers_room, "Processes", pools.make)
        patched.setattr(workers_room, "FEW", few)
        patched.setattr(pools_of_workers, "_begun", None)
        yield pools
