"""Tasks done side by side: in this process, and in others that start when there are enough tasks.

This process has run the program already and begins at once; the others first import the same modules. Results are in
the order of the tasks, so that it does not matter which process did which. A worker reports its knowledge with its
results, so that no other worker repeats that work.

- Tasks are drawn a little ahead of their results, and never after the caller's iterator has ended.
- A dead worker (killed, out of memory, crashed in C code) is replaced by its pool (`_processes.py`); a Dask cluster
  (`_cluster.py`) first gives its tasks to another worker. Its tasks are done again, each alone, and `died` counts. A
  lone task at its `_DEATHS`th death is to blame: `Worker.killed` returns its result. The task is not tried here, since
  it could end this process, too.
- If one worker after the other dies before its first task, there can be none: that is an error.
- If all workers of a pool are gone, their tasks are done here.
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from simdist.errors import ArgumentError, SimdistError
from simdist.programs._pools import Pool, Start, Worker, unreachable
from simdist.programs._processes import Processes, Warm

__all__ = ["FEW", "Workers", "cores", "died_words", "workers_problems"]

FEW = 40  # with fewer tasks, this process alone is faster than starting others
_AT_ONCE = 4  # the most tasks sent to a process at a time, so that all end at nearly the same time
_AHEAD = 2  # times as many are queued for it, so that it need not wait for this process
_DEATHS = 3
_LOOK_S = 5.0  # real seconds between checks that a pool still has workers

Task = TypeVar("Task")
Result = TypeVar("Result")

_Part = list[tuple[int, Task]]


class Workers(Generic[Task, Result]):
    """The worker `here`, and others, each of which `start` makes in its own process.

    `where` is the number of processes, including this one, or the address of the scheduler of a Dask cluster, whose
    workers do all tasks that this process does not. `warm` imports the program, shared by those of this machine.

    With `apart` this process does no task while there are other workers, and `where` counts only those.

    Raises:
        ArgumentError: `start` can't be sent to another process, or no scheduler answers at that address.
    """

    def __init__(
        self,
        here: Worker[Task, Result],
        start: Start,
        where: int | str,
        *,
        warm: Warm | None = None,
        apart: bool = False,
    ) -> None:
        self.died = 0  # workers
        self._here = here
        self._where = where
        self._apart = apart
        self._start = self._warm = b""
        self._pool: Pool | None = None
        self._away: dict[Future[tuple[list[Result], dict[str, Any]]], _Part[Task]] = {}
        self._again: deque[_Part[Task]] = deque()  # the tasks of dead workers
        self._deaths: Counter[int] = Counter()  # by task: deaths of workers that had it
        self._in_vain = 0  # consecutive deaths of workers before their first task
        if where != 1 or apart:
            try:
                self._start = pickle.dumps(start)
                self._warm = b"" if warm is None else pickle.dumps(warm)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ArgumentError("workers", [unreachable(error)]) from error
        if isinstance(where, str):
            self._present()  # to report a wrong address before anything runs

    def run(self, tasks: Iterable[Task], count: int | None = None) -> Iterator[tuple[Task, Result]]:
        """Yield each task with its result, in order. `count` is the number of tasks; None: unknown, or many."""
        if not self._apart and (self._where == 1 or (count is not None and count < FEW)):
            yield from ((task, self._here.do(task)) for task in tasks)
            return
        source = enumerate(tasks)
        mine: deque[tuple[int, Task]] = deque()
        done: dict[int, tuple[Task, Result]] = {}
        for number in itertools.count():
            while number not in done:
                self._collect(done)
                others = self._present().size()
                at_once = _AT_ONCE if count is None or not others else min(_AT_ONCE, count // (_AHEAD * others) or 1)
                while len(self._away) < _AHEAD * others:
                    part = self._again.popleft() if self._again else list(itertools.islice(source, at_once))
                    if not part:
                        break
                    self._send(part)
                if self._again and not others:
                    mine.extend(self._again.popleft())
                mine.extend(itertools.islice(source, 0 if mine or (self._apart and others) else at_once))
                if mine:
                    at, task = mine.popleft()
                    done[at] = task, self._here.do(task)
                elif self._away:
                    over, _ = wait(self._away, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
                    if not over and not self._present().size():
                        self._do_again(self._away.values())
                        self._away.clear()
                elif number not in done and not self._again:
                    return
            yield done.pop(number)

    def _present(self) -> Pool:
        """Return the pool of other workers."""
        if self._pool is None:
            if isinstance(self._where, str):
                self._pool = _cluster(self._where)
            else:
                self._pool = Processes(self._where if self._apart else self._where - 1, self._warm)
        return self._pool

    def _send(self, part: _Part[Task]) -> None:
        future = self._present().submit(self._start, [task for _, task in part], self._here.learnt())
        self._away[future] = part

    def _collect(self, done: dict[int, tuple[Task, Result]]) -> None:
        """Collect finished results."""
        pool = self._pool
        if pool is None:
            return
        died = False
        for future in [each for each in self._away if each.done()]:
            part = self._away.pop(future)
            try:
                found, learnt = future.result()
            except pool.broken as error:
                died = True
                done.update(self._blamed(part, str(error)))
            except pool.unborn as error:
                died = True
                self._do_again([part])
                self._count_unborn(str(error))
            except pool.lost:
                self._do_again([part])
            else:
                done.update({at: (task, result) for (at, task), result in zip(part, found, strict=True)})
                self._here.learn(learnt)
                self._in_vain = 0
        if died:
            pool.renew()

    def _blamed(self, part: _Part[Task], how: str) -> Iterator[tuple[int, tuple[Task, Result]]]:
        """Handle a worker's death; yield a task's result if the task is certainly to blame.

        Raises:
            SimdistError: there is no such result.
        """
        self.died += 1
        self._in_vain = 0
        self._deaths.update(at for at, _ in part)
        at, task = part[0]
        if len(part) == 1 and self._deaths[at] == _DEATHS:
            yield at, (task, self._here.killed(at, task, how))
        else:
            self._do_again([[each] for each in part])

    def _count_unborn(self, how: str) -> None:
        self.died += 1
        self._in_vain += 1
        if self._in_vain == _DEATHS:
            raise SimdistError(
                f"no worker process can start: {_DEATHS} died before their first task, the last one {how}; a script "
                "that starts workers needs `if __name__ == '__main__':`"
            ) from None

    def _do_again(self, parts: Iterable[_Part[Task]]) -> None:
        """Queue parts again, the earliest first."""
        self._again = deque(sorted([*self._again, *parts], key=lambda part: part[0][0]))

    def __enter__(self) -> Workers[Task, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:  # results under way are not needed
            self._pool.close(at_once=bool(self._away) or error is not None)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def died_words(died: int) -> str:
    """Return a sentence about the deaths of workers."""
    times = "once" if died == 1 else f"{died} times"
    return f"worker processes died {times}; what they had begun was done again"


def workers_problems(workers: object) -> Iterator[str]:
    """Yield the problems of an argument that gives the place of tasks."""
    if isinstance(workers, str):
        if "://" not in workers:
            yield f"workers: {workers!r} is no address of a Dask scheduler, such as 'tcp://10.0.0.1:8786'"
    elif isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        yield f"workers: {workers!r} is no count; 1 is the least"


def _cluster(address: str) -> Pool:
    from simdist.programs._cluster import DaskCluster  # of the extra `cluster`

    return DaskCluster(address)
