"""Tasks done side by side: in this process, and in others that start when there is enough to do.

This process has run the program already and begins at once; the others first import what it has imported. Results are
given in the order of the tasks, so that it does not matter who did what. What one worker has learnt it reports with its
results, so that no other finds it out again.

- Tasks are drawn a little ahead of their results, and never after the caller's iterator has ended.
- A worker that dies (killed, out of memory, crashed in C code) is replaced by its pool (`_processes.py`); a Dask
  cluster (`_cluster.py`) first gives what it had to another one. What it had is done again, each task by itself, and
  `died` counts. A task by itself that is there at the `_DEATHS`th death is to blame: `Worker.killed` says what that
  comes to. It is not tried here, since it could end this process, too.
- Where one worker after the other can't even begin, there can be none: that is an error.
- What a pool has is done here if all its workers are gone.
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

FEW = 40  # tasks that are sooner done here than processes are started
_AT_ONCE = 4  # tasks that a process gets at a time, at most, so that all end at nearly the same time
_AHEAD = 2  # times as many wait for it, so that it need not wait for this process
_DEATHS = 3
_LOOK_S = 5.0  # real seconds after which one who waits for a pool looks whether it still has workers

Task = TypeVar("Task")
Result = TypeVar("Result")

_Part = list[tuple[int, Task]]


class Workers(Generic[Task, Result]):
    """`here`, and others, each of which `start` makes in a process of its own.

    `where` is how many processes there are, this one among them, or the address of the scheduler of a Dask cluster,
    whose workers do what this process does not. `warm` imports the program, for those of this machine to share.

    With `apart` this process does none as long as there are others, and `where` counts those.

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
        self._again: deque[_Part[Task]] = deque()  # what workers had that died
        self._deaths: Counter[int] = Counter()  # of workers that had a task
        self._in_vain = 0  # deaths of workers that could not begin, one after the other
        if where != 1 or apart:
            try:
                self._start = pickle.dumps(start)
                self._warm = b"" if warm is None else pickle.dumps(warm)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ArgumentError("workers", [unreachable(error)]) from error
        if isinstance(where, str):
            self._present()  # a wrong address is known before anything runs

    def run(self, tasks: Iterable[Task], count: int | None = None) -> Iterator[tuple[Task, Result]]:
        """Each task with its result, in their order. `count` is how many there are; None: nobody knows, or many."""
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
        """Those who work beside this process."""
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
        """Take what has come back."""
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
        """The result of a task of which workers die; there is none if it may have been another one.

        Raises:
            SimdistError: that is no result.
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
        """The earliest first."""
        self._again = deque(sorted([*self._again, *parts], key=lambda part: part[0][0]))

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
