"""Tasks done side by side: in this process, and in others that start when there is enough to do.

This process has run the program already and begins at once; the others first import what it has imported. Results are
given in the order of the tasks, so that it does not matter who did what. What one worker has learnt it reports with its
results, so that no other finds it out again.

- Tasks are drawn a little ahead of their results, and never after the caller's iterator has ended.
- A worker that dies (killed, out of memory, crashed in C code) ends its pool (`_pools.py`); a Dask cluster
  (`_cluster.py`) first gives what it had to another one. What the pool had is done again by a new one, and `died`
  counts. Where pools die one after the other and nothing gets done, a task is to blame, or there can be no workers:
  that is an error, since trying it here could end this process, too.
- What a pool has is done here if all its workers are gone.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from simdist.errors import ArgumentError, SimdistError
from simdist.programs._pools import Pool, Processes, Start, Worker, unreachable

__all__ = ["Workers", "cores", "died_words", "workers_problems"]

_FEW = 40  # tasks that are sooner done here than processes are started
_AT_ONCE = 4  # tasks that a process gets at a time; no more, so that all end at nearly the same time
_AHEAD = 2  # times as many wait for it, so that it need not wait for this process
_DEATHS = 3  # one after the other
_LOOK_S = 5.0  # real seconds after which one who waits for a pool looks whether it still has workers

Task = TypeVar("Task")
Result = TypeVar("Result")

_Part = list[tuple[int, Task]]


class Workers(Generic[Task, Result]):
    """`here`, and others, each of which `start` makes in a process of its own.

    `where` is how many processes there are, this one among them, or the address of the scheduler of a Dask cluster,
    whose workers do what this process does not.

    Raises:
        ArgumentError: `start` can't be sent to another process, or no scheduler answers at that address.
    """

    def __init__(self, here: Worker[Task, Result], start: Start, where: int | str) -> None:
        self.died = 0  # workers, or pools of them
        self._here = here
        self._where = where
        self._start = b""
        self._pool: Pool | None = None
        self._away: dict[Future[tuple[list[Result], dict[str, Any]]], _Part[Task]] = {}
        self._again: deque[_Part[Task]] = deque()  # what workers had that died
        self._in_vain = 0  # deaths since the last result
        if where != 1:
            try:
                self._start = pickle.dumps(start)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ArgumentError("a search", [unreachable(error)]) from error
        if isinstance(where, str):
            self._present()  # a wrong address is known before anything runs

    def run(self, tasks: Iterable[Task], count: int | None = None) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, in their order. `count` is how many there are; None: nobody knows, or many."""
        if self._where == 1 or (count is not None and count < _FEW):
            yield from ((task, self._here.do(task)) for task in tasks)
            return
        source = enumerate(tasks)
        mine: deque[tuple[int, Task]] = deque()
        done: dict[int, tuple[Task, Result]] = {}
        for number in itertools.count():
            while number not in done:
                self._collect(done)
                others = self._present().size()
                while len(self._away) < _AHEAD * others:
                    part = self._again.popleft() if self._again else list(itertools.islice(source, _AT_ONCE))
                    if not part:
                        break
                    self._send(part)
                if self._again and not others:
                    mine.extend(self._again.popleft())
                mine.extend(itertools.islice(source, 0 if mine else _AT_ONCE))
                if mine:
                    at, task = mine.popleft()
                    done[at] = task, self._here.do(task)
                elif self._away:
                    over, _ = wait(self._away, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                    if not over and not self._present().size():
                        self._take_back()
                elif number not in done and not self._again:
                    return
            yield done.pop(number)

    def _present(self) -> Pool:
        """Those who work beside this process."""
        if self._pool is None:
            self._pool = Processes(self._where - 1) if isinstance(self._where, int) else _cluster(self._where)
        return self._pool

    def _send(self, part: _Part[Task]) -> None:
        pool = self._present()
        try:
            future = pool.submit(self._start, [task for _, task in part], self._here.learnt())
        except pool.broken:
            self._again.append(part)
            self._renew()
        else:
            self._away[future] = part

    def _collect(self, done: dict[int, tuple[Task, Result]]) -> None:
        """Take what has come back."""
        if self._pool is None:
            return
        broken = False
        for future in [each for each in self._away if each.done()]:
            try:
                found, learnt = future.result()
            except self._pool.broken:
                broken = True
                continue
            except self._pool.lost:
                self._again.append(self._away.pop(future))
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
        self._take_back()
        self._pool.close(at_once=False)
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

    def _take_back(self) -> None:
        """What others have is done again, the earliest first."""
        self._again = deque(sorted([*self._again, *self._away.values()], key=lambda part: part[0][0]))
        self._away.clear()

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:  # what was interrupted, or has enough, does not want what is under way
            self._pool.close(at_once=bool(self._away) or error is not None)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def died_words(died: int) -> str:
    """That workers died, in a sentence."""
    times = "once" if died == 1 else f"{died} times"
    return f"worker processes died {times}; what they had begun was done again"


def workers_problems(workers: object) -> Iterator[str]:
    """What is wrong with an argument that says where tasks are done."""
    if isinstance(workers, str):
        if "://" not in workers:
            yield f"workers: {workers!r} is no address of a Dask scheduler, such as 'tcp://10.0.0.1:8786'"
    elif isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        yield f"workers: {workers!r} is no count; 1 is the least"


def _cluster(address: str) -> Pool:
    from simdist.programs._cluster import DaskCluster  # of the extra `cluster`

    return DaskCluster(address)
