"""The sweep: number the points of a run, then crash it at each."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from simdist.errors import ArgumentError
from simdist.scenario import Plan
from simdist.sweeps._points import STRIKES, Case, Strike, Watcher, cases_of
from simdist.sweeps._programs import PlanProgram, Program
from simdist.sweeps._report import Failure, SweepReport, failure_of, unseen_in

__all__ = ["sweep_plan", "swept"]

Progress = Callable[[int, int, int], None]
"""Called with how many crashes were tried, how many there are, and how many of them failed."""

_FEW = 40  # crashes that are sooner tried here than processes are started

_program: PlanProgram | None = None  # of a worker process


def swept(
    program: Program,
    *,
    strikes: Sequence[Strike] = STRIKES,
    outcomes: int = 4,
    limit: int | None = None,
    progress: Progress | None = None,
    run: Callable[[Sequence[Case]], Iterator[Failure | None]] | None = None,
) -> SweepReport:
    """Crash `program` at every point, one after the other, or as `run` does it; at most `limit` crashes, spread evenly.

    Of a crash of all hosts the `outcomes` most suspicious states of the disk are tried.

    Raises:
        ArgumentError: power is to be lost, and there is no disk to lose anything from.
    """
    if "rank" not in strikes and not program.has_disk:
        raise ArgumentError("a sweep", ["a host that loses power loses nothing without a disk; mount one"])
    watcher = Watcher(outcomes)
    first = program.watch(watcher)
    cases, merged = cases_of(watcher.points, strikes, program.hosts, outcomes)
    unseen = unseen_in([first.result])
    points = tuple(watcher.points)
    if first.problems:
        return SweepReport(points=points, cases=(), failures=(), wrong=first.problems, unseen=unseen)
    chosen = _spread(cases, limit)
    failures: list[Failure] = []
    found = run(chosen) if run is not None else (_try(program, case) for case in chosen)
    for count, failure in enumerate(found, 1):
        if failure is not None:
            failures.append(failure)
        if progress is not None:
            progress(count, len(chosen), len(failures))
    return SweepReport(
        points=points,
        cases=tuple(chosen),
        failures=tuple(failures),
        merged=merged,
        left_out=len(cases) - len(chosen),
        unseen=unseen,
    )


def sweep_plan(
    plan: Plan,
    *,
    strikes: Sequence[Strike] = STRIKES,
    outcomes: int = 4,
    limit: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Sweep a scenario in `workers` processes, by default one for each core; in this one, if there is little to try.

    Raises:
        ScenarioError: the workload can't be imported.
        ArgumentError: see `swept`.
    """
    program = PlanProgram(plan)
    count = workers or _cores()

    def run(cases: Sequence[Case]) -> Iterator[Failure | None]:
        if count == 1 or len(cases) < _FEW:
            yield from (_try(program, case) for case in cases)
            return
        size = max(1, min(16, len(cases) // (4 * count)))
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (plan,))
        try:
            yield from pool.map(_try_in_worker, cases, chunksize=size)
        finally:  # at once, if somebody has interrupted it
            pool.shutdown(wait=False, cancel_futures=True)

    return swept(program, strikes=strikes, outcomes=outcomes, limit=limit, progress=progress, run=run)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(plan: Plan) -> None:
    global _program
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever waits for the results is interrupted
    _program = PlanProgram(plan)
    _program.watch(Watcher(0))


def _try_in_worker(case: Case) -> Failure | None:
    assert _program is not None
    return _try(_program, case)


def _try(program: Program, case: Case) -> Failure | None:
    fault = case.fault
    return failure_of(case, program.strike(fault), program.replay(fault))


def _spread(cases: Sequence[Case], limit: int | None) -> list[Case]:
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]
