"""The sweep: number the points of a run, then crash it at each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from simdist._quiet import no_logs_of_ranks
from simdist.errors import ArgumentError
from simdist.files import Looks
from simdist.scenario import Plan
from simdist.sweeps._kept import Kept
from simdist.sweeps._points import STRIKES, Case, Point, Watcher, cases_of
from simdist.sweeps._programs import PlanProgram, Program
from simdist.sweeps._report import Failure, SweepReport, Tried, unseen_in
from simdist.sweeps._tries import Tries
from simdist.sweeps._workers import Workers, try_case

__all__ = ["sweep_plan", "swept"]

Progress = Callable[[int, int, int], None]
"""Called with how many crashes were tried, how many there are, and how many of them failed."""

Run = Callable[[Sequence[Case]], Iterator[Tried]]
"""Tries crashes, and gives what became of them in their order."""


def swept(
    program: Program,
    tries: Tries,
    *,
    progress: Progress | None = None,
    keep: str | None = None,
    run: Run | None = None,
) -> SweepReport:
    """Crash `program` at every point, one after the other, or as `run` does it.

    What is found is kept in the file `keep`, if it is given: a sweep that was interrupted goes on from there.

    Raises:
        ArgumentError: power is to be lost, and there is no disk to lose anything from; or the file is of another sweep.
    """
    if tries.strikes is None:
        tries = replace(tries, strikes=STRIKES[: 4 if program.has_local_disks else 3])
    strikes = tries.strikes or ()
    if "rank" not in strikes and not program.has_disk:
        raise ArgumentError("a sweep", ["a host that loses power loses nothing without a disk; mount one"])
    if "swap" in strikes and not program.has_local_disks:
        raise ArgumentError("a sweep", ["no host has a disk of its own that could be swapped; mount local ones"])
    with ExitStack() as stack:
        stack.enter_context(no_logs_of_ranks())
        stack.enter_context(program.ready())
        stack.callback(Looks.end)
        watcher = Watcher(tries.outcomes)
        first = program.watch(watcher)
        points = watcher.points
        assert first.result is not None
        unseen = unseen_in([first.result])
        if unseen:
            points = [point.blind for point in points]
        if first.problems:
            return SweepReport(points=tuple(points), cases=(), failures=(), wrong=first.problems, unseen=unseen)
        kept = None if keep is None else stack.enter_context(Kept(keep, points, tries, program.called))
        sweep = _Sweep(
            program, tries, run or (lambda cases: (try_case(program, case) for case in cases)), kept, progress
        )
        sweep.note(first.result.sometimes)
        sweep.crash(points)
        if tries.second_crash or (tries.only is not None and len(tries.only) > 1):
            sweep.crash_again()
        if tries.only is not None and (not sweep.cases or sweep.cases[-1].faults != tries.only):
            raise ArgumentError("a sweep", [f"only: none of its crashes is {list(tries.only)!r}"])
    return SweepReport(
        points=tuple(points),
        cases=tuple(sweep.cases),
        failures=tuple(sweep.failures),
        merged=sweep.merged,
        left_out=sweep.left_out,
        known=sweep.known,
        unseen=unseen,
        never=tuple(name for name, held in sweep.sometimes.items() if not held),
    )


class _Sweep:
    """A sweep on its way."""

    def __init__(self, program: Program, tries: Tries, run: Run, kept: Kept | None, progress: Progress | None) -> None:
        self._program = program
        self._tries = tries
        self._run = run
        self._kept = kept
        self._progress = progress
        self._blind = False
        self._begun: dict[str, Case] = {}  # by what they find, the first crash that leads to each second life
        self._found: dict[str, None] = {}  # what second and third lives begin with
        self.cases: list[Case] = []
        self.failures: list[Failure] = []
        self.merged = self.left_out = self.known = 0
        self.sometimes: dict[str, bool] = {}  # what should be reached in some run: whether it was

    def note(self, sometimes: Sequence[tuple[str, bool]]) -> None:
        """A run has reached these."""
        for name, held in sometimes:
            self.sometimes[name] = self.sometimes.get(name, False) or held

    def crash(self, points: Sequence[Point]) -> None:
        """Crash at each of these points."""
        self._blind = any(not point.left for point in points)
        cases, self.merged = self._cases(points)
        for case, tried in self._tried(cases):
            if tried.begun is not None and tried.failure is None:
                self._begun.setdefault(tried.begun, case)

    def crash_again(self) -> None:
        """Crash at each point of each second life that is another one, until that is as far as the first life was."""
        cases: list[Case] = []
        for first in self._begun.values():
            reached = first.point.reached
            watcher = Watcher(self._tries.outcomes, life=1, until=reached if reached >= 0 else None)
            self._program.strike(first, watcher)
            points = [point.blind for point in watcher.points] if self._blind else watcher.points
            more, merged = self._cases(points, first)
            cases += more
            self.merged += merged
        for _ in self._tried(cases):
            pass

    def _cases(self, points: Sequence[Point], first: Case | None = None) -> tuple[list[Case], int]:
        tries = self._tries
        cases, merged = cases_of(points, tries.strikes or (), self._program.hosts, tries.outcomes, first)
        return [case for case in cases if tries.takes(case.faults)], merged

    def _tried(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Tried]]:
        chosen = _spread(cases, self._tries.limit)
        self.left_out += len(cases) - len(chosen)
        before = len(self.cases)
        self.cases += chosen
        found = [None if self._kept is None else self._kept.get(before + n, case) for n, case in enumerate(chosen)]
        missing = self._run([case for case, tried in zip(chosen, found, strict=True) if tried is None])
        for number, (case, kept) in enumerate(zip(chosen, found, strict=True), before):
            tried = next(missing) if kept is None else kept
            if kept is None and self._kept is not None:
                self._kept.put(number, tried)
            if tried.begun is not None:  # counted so that it does not matter which process has seen what
                self.known += self._program.merges and tried.begun in self._found
                self._found[tried.begun] = None
            self.note(tried.sometimes)
            if tried.failure is not None:
                self.failures.append(tried.failure)
            if self._progress is not None:
                self._progress(number + 1, len(self.cases), len(self.failures))
            yield case, tried


def sweep_plan(
    plan: Plan,
    tries: Tries | None = None,
    *,
    workers: int | None = None,
    keep: str | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Sweep a scenario in `workers` processes, this one and others, by default one for each core.

    There are no others if there is little to try.

    Raises:
        ScenarioError: the workload can't be imported.
        ArgumentError: see `swept`.
    """
    tries = tries or Tries()
    program = PlanProgram(plan, merge=tries.merge)
    with Workers(plan, program, workers or _cores(), tries) as pool:
        return swept(program, tries, progress=progress, keep=keep, run=pool.run)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _spread(cases: Sequence[Case], limit: int | None) -> list[Case]:
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]
