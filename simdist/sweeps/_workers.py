"""Crashes tried side by side: in this process, and in others that start when there is enough to do.

This process has seen the undisturbed run already and begins at once; the others first import what it has imported. What
one has learnt of a second life it tells, with its results, so that no other runs that life to its end again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import connection
from types import FrameType, TracebackType

from simdist.scenario import Plan
from simdist.sweeps._points import Case, Watcher
from simdist.sweeps._programs import PlanProgram, Program
from simdist.sweeps._report import Failure, Tried
from simdist.sweeps._second_lives import SecondLife
from simdist.sweeps._tries import Tries

__all__ = ["Workers", "try_case"]

_FEW = 40  # crashes that are sooner tried here than processes are started
_AT_ONCE = 4  # crashes that a process gets at a time; no more, so that all end at nearly the same time
_PATIENCE_S = 2  # for a process that is to end
_AHEAD = 2  # times as many wait for it, so that it need not wait for this process

_Found = tuple[list[Tried], dict[str, SecondLife]]

_program: PlanProgram | None = None  # of a worker process


class Workers:
    """This process, in which `program` has been watched, and `count` - 1 others for the same plan."""

    def __init__(self, plan: Plan, program: PlanProgram, count: int, tries: Tries) -> None:
        self._program = program
        self._others = count - 1
        self._before = multiprocessing.active_children()
        self._pool: ProcessPoolExecutor | None = None
        if self._others:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._others, context, _begin, (plan, tries))

    def run(self, cases: Sequence[Case]) -> Iterator[Tried]:
        """What becomes of them, in their order."""
        program, pool = self._program, self._pool
        if pool is None or len(cases) < _FEW:
            yield from (try_case(program, case) for case in cases)
            return
        left = deque(range(0, len(cases), _AT_ONCE))  # where the parts begin that nobody has
        mine: deque[int] = deque()
        away: dict[Future[_Found], int] = {}
        done: dict[int, Tried] = {}
        for number in range(len(cases)):
            while number not in done:
                for future in [each for each in away if each.done()]:
                    found, lives = future.result()
                    done.update(enumerate(found, away.pop(future)))
                    program.learn(lives)
                while left and len(away) < _AHEAD * self._others:
                    start = left.popleft()
                    part = list(cases[start : start + _AT_ONCE])
                    away[pool.submit(_try_in_worker, part, program.learnt())] = start
                if left and not mine:
                    start = left.popleft()
                    mine.extend(range(start, min(start + _AT_ONCE, len(cases))))
                if mine:
                    at = mine.popleft()
                    done[at] = try_case(program, cases[at])
                else:
                    wait(away, return_when=FIRST_COMPLETED)
            yield done.pop(number)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is None:
            return
        if error is not None:  # somebody has interrupted it: what is under way is wanted no more
            for child in multiprocessing.active_children():
                if child not in self._before:
                    child.terminate()
        self._pool.shutdown(wait=error is not None, cancel_futures=True)


def try_case(program: Program, case: Case) -> Tried:
    """Try a crash."""
    ran = program.strike(case)
    failure = None if not ran.problems else Failure(case, ran.left, ran.problems, program.replay(case))
    return Tried(failure, ran.begun, () if ran.result is None else ran.result.sometimes)


def _begin(plan: Plan, tries: Tries) -> None:
    global _program
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the results is interrupted
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _program = PlanProgram(plan, merge=tries.merge)
    _program.ready().__enter__()  # for as long as the process lives
    _program.watch(Watcher(tries.outcomes))


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


def _try_in_worker(cases: Sequence[Case], lives: dict[str, SecondLife]) -> _Found:
    assert _program is not None
    _program.learn(lives)
    found = [try_case(_program, case) for case in cases]
    return found, {name: life for name, life in _program.learnt().items() if name not in lives}
