"""Pools that stand for those of worker processes: what they get is done at once, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import pytest

from simdist.programs import _pools as pools_of_workers

__all__ = ["Pools", "standing_in"]


@dataclass
class Pools:
    """What pools are made of: `dies_at` says for each of them at which submission, from 1, one of its workers dies."""

    dies_at: Iterator[int] = field(default_factory=lambda: iter(()))
    made: int = 0
    submitted: list[list[Any]] = field(default_factory=list)

    def make(self, count: int, context: object, begin: object) -> _Pool:
        """As `ProcessPoolExecutor`."""
        self.made += 1
        return _Pool(self, next(self.dies_at, 0))


@dataclass
class _Pool:
    pools: Pools
    dies_at: int
    life: Any = None
    submissions: int = 0

    def submit(self, do: Callable[..., Any], start: bytes, tasks: list[Any], known: dict[str, Any]) -> Future[Any]:
        self.submissions += 1
        if self.dies_at and self.submissions > self.dies_at:
            raise BrokenProcessPool("one is dead")
        future: Future[Any] = Future()
        if self.submissions == self.dies_at:
            future.set_exception(BrokenProcessPool("one died"))
            return future
        self.pools.submitted.append(tasks)
        pools_of_workers._begun = self.life
        try:
            future.set_result(do(start, tasks, known))
        except Exception as error:
            future.set_exception(error)
        self.life, pools_of_workers._begun = pools_of_workers._begun, None
        return future

    def shutdown(self, **_: Any) -> None:
        pools_of_workers._begun, self.life = self.life, None
        pools_of_workers.end()


@contextlib.contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, *dies_at: int) -> Iterator[Pools]:
    """Inside, workers are in such pools."""
    pools = Pools(iter(dies_at))
    with monkeypatch.context() as patched:
        patched.setattr(pools_of_workers, "ProcessPoolExecutor", pools.make)
        patched.setattr(pools_of_workers, "_begun", None)
        yield pools
