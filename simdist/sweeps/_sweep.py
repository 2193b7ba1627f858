"""The sweep: number the points of a run, then crash it at each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial

from simdist.errors import ArgumentError
from simdist.files import Looks
from simdist.programs import PlanProgram, Workers, cores, kept_when_interrupted, no_logs_of_ranks
from simdist.scenario import Plan, undisturbed
from simdist.sweeps._crashes import Crashes, crashes_elsewhere
from simdist.sweeps._failure import Failure, Tried
from simdist.sweeps._kept import Kept
from simdist.sweeps._points import STRIKES, Case, Point, Watcher, cases_of
from simdist.sweeps._report import SweepReport, unseen_in
from simdist.sweeps._tries import Tries

__all__ = ["sweep_plan", "swept"]

Progress = Callable[[int, int, int], None]
"""Called with how many crashes were tried, how many there are, and how many of them failed."""


def swept(
    crashes: Crashes,
    tries: Tries,
    *,
    progress: Progress | None = None,
    keep: str | None = None,
    workers: Workers[Case, Tried] | None = None,
) -> SweepReport:
    """Crash a program at every point, one after the other, or in parallel, as `workers` do it.

    The results are kept in the file `keep`, if it is given: an interrupted sweep continues from there.

    Raises:
        ArgumentError: a strike takes power away, but there is no disk; or the file belongs to another sweep.
        InterruptedRunsError: it was interrupted.
    """
    program = crashes.program
    if tries.strikes is None:
        tries = replace(tries, strikes=STRIKES[: 4 if program.has_local_disks else 3])
    strikes = tries.strikes or ()
    if not program.has_disk and not {"rank", "sigterm", "hang"}.intersection(strikes):
        raise ArgumentError("a sweep", ["a host that loses power loses nothing without a disk; mount one"])
    if "swap" in strikes and not program.has_local_disks:
        raise ArgumentError("a sweep", ["no host has a disk of its own that could be swapped; mount local ones"])
    with ExitStack() as stack:
        stack.enter_context(no_logs_of_ranks())
        stack.enter_context(crashes.ready())
        stack.callback(Looks.end)
        watcher = Watcher(tries.outcomes)
        first = crashes.watch(watcher)
        points = watcher.points
        assert first.result is not None
        unseen = unseen_in([first.result])
        if unseen:
            points = [point.blind for point in points]
        if first.problems:
            return SweepReport(
                points=tuple(points), cases=(), failures=(), wrong=first.problems, unseen=unseen, call=crashes.call
            )
        kept = None if keep is None else stack.enter_context(Kept(keep, points, tries, crashes.called))
        sweep = _Sweep(crashes, tries, workers or Workers(crashes, lambda: nullcontext(crashes), 1), kept, progress)
        sweep.note(first.result.sometimes)
        with kept_when_interrupted(lambda: sweep.interrupted(points, unseen)):
            sweep.crash(points)
            if tries.second_crash or (tries.only is not None and len(tries.only) > 1):
                sweep.crash_again()
        if tries.only is not None and (not sweep.cases or sweep.cases[-1].faults != tries.only):
            raise ArgumentError("a sweep", [f"only: none of its crashes is {list(tries.only)!r}"])
    return replace(sweep.report(points, unseen), died=0 if workers is None else workers.died)


class _Sweep:
    """A running sweep."""

    def __init__(
        self,
        crashes: Crashes,
        tries: Tries,
        workers: Workers[Case, Tried],
        kept: Kept | None,
        progress: Progress | None,
    ) -> None:
        self._crashes = crashes
        self._tries = tries
        self._workers = workers
        self._kept = kept
        self._progress = progress
        self._blind = False
        self._begun: dict[str, Case] = {}  # by what second lives find, the first crash that leads to each
        self._found: dict[str, None] = {}  # the first states of second and third lives
        self.cases: list[Case] = []
        self.failures: list[Failure] = []
        self.merged = self.left_out = self.known = self._done = 0
        self.sometimes: dict[str, bool] = {}  # names that should hold in some run: whether they did

    def note(self, sometimes: Sequence[tuple[str, bool]]) -> None:
        """Note the names that a run has reached."""
        for name, held in sometimes:
            self.sometimes[name] = self.sometimes.get(name, False) or held

    def report(self, points: Sequence[Point], unseen: Sequence[str]) -> SweepReport:
        """Return the results of its crashes at these points."""
        return SweepReport(
            points=tuple(points),
            cases=tuple(self.cases),
            failures=tuple(self.failures),
            merged=self.merged,
            left_out=self.left_out,
            known=self.known,
            unseen=tuple(unseen),
            never=tuple(name for name, held in self.sometimes.items() if not held),
            call=self._crashes.call,
        )

    def interrupted(self, points: Sequence[Point], unseen: Sequence[str]) -> SweepReport | None:
        """Return the results of an interrupted sweep; None if it has tried nothing."""
        if not self._done:
            return None
        return replace(self.report(points, unseen), cases=tuple(self.cases[: self._done]), never=(), interrupted=True)

    def crash(self, points: Sequence[Point]) -> None:
        """Crash at each of these points."""
        self._blind = any(not point.left for point in points)
        cases, self.merged = self._cases(points)
        for case, tried in self._tried(cases):
            if tried.begun is not None and tried.failure is None:
                self._begun.setdefault(tried.begun, case)

    def crash_again(self) -> None:
        """Crash at each point of each distinct second life, until that life is as far as the first was."""
        cases: list[Case] = []
        for first in self._begun.values():
            reached = first.point.reached
            watcher = Watcher(self._tries.outcomes, life=1, until=reached if reached >= 0 else None)
            self._crashes.strike(first, watcher)
            points = [point.blind for point in watcher.points] if self._blind else watcher.points
            more, merged = self._cases(points, first)
            cases += more
            self.merged += merged
        for _ in self._tried(cases):
            pass

    def _cases(self, points: Sequence[Point], first: Case | None = None) -> tuple[list[Case], int]:
        tries = self._tries
        cases, merged = cases_of(points, tries.strikes or (), self._crashes.program.hosts, tries.outcomes, first)
        return [case for case in cases if tries.takes(case.faults)], merged

    def _tried(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Tried]]:
        chosen = _spread(cases, self._tries.limit)
        self.left_out += len(cases) - len(chosen)
        before = len(self.cases)
        self.cases += chosen
        found = [None if self._kept is None else self._kept.get(before + n, case) for n, case in enumerate(chosen)]
        cases = [case for case, tried in zip(chosen, found, strict=True) if tried is None]
        missing = self._workers.run(cases, len(cases))
        for number, (case, kept) in enumerate(zip(chosen, found, strict=True), before):
            tried = next(missing)[1] if kept is None else kept
            if kept is None and self._kept is not None:
                self._kept.put(number, tried)
            if tried.begun is not None:  # counted so that it does not matter which process has seen which life
                self.known += self._crashes.merges and tried.begun in self._found
                self._found[tried.begun] = None
            self.note(tried.sometimes)
            if tried.failure is not None:
                self.failures.append(tried.failure)
            self._done = number + 1
            if self._progress is not None:
                self._progress(number + 1, len(self.cases), len(self.failures))
            yield case, tried


def sweep_plan(
    plan: Plan,
    tries: Tries | None = None,
    *,
    workers: int | str | None = None,
    keep: str | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Sweep a scenario in `workers` processes, this one and others, by default one for each core.

    Or `workers` is the address of a Dask scheduler, whose workers try what this process does not.

    Other processes are only started if there is enough to try.

    Raises:
        ScenarioError: the workload can't be imported.
        ArgumentError: see `swept`.
    """
    tries = tries or Tries()
    crashes = Crashes.of_plan(plan, merge=tries.merge)
    alike = undisturbed(plan)
    elsewhere = partial(crashes_elsewhere, alike, tries)
    with Workers(crashes, elsewhere, workers or cores(), warm=PlanProgram(alike).warm) as pool:
        return swept(crashes, tries, progress=progress, keep=keep, workers=pool)


def _spread(cases: Sequence[Case], limit: int | None) -> list[Case]:
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]
