"""The parity run: one scenario is simulated once and run for real, once or more, and the runs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simdist.errors import SimdistError
from simdist.hardware._keeper import Keeper
from simdist.hardware._launch import Nodes
from simdist.hardware.compare._account import Account, account_of
from simdist.hardware.compare._compare import Point, compare, recorders
from simdist.hardware.compare._portable import NotReplayed, not_replayed
from simdist.hardware.compare._replay import RealReport, replay, unavailable, without
from simdist.scenario import Plan, run_scenario
from simdist.values import Json

__all__ = ["ParityReport", "Timing", "check_parity", "exit_code"]

Status = Literal["parity", "difference", "not comparable"]


@dataclass(frozen=True, slots=True)
class Timing:
    """A rank's lifetime in virtual seconds; for each real run, real seconds divided by the scale."""

    rank: int
    simulated_s: float
    real_s: tuple[float, ...]

    def within(self, tolerance: float) -> bool:
        """True if some real run differs by no more than this share of the longer of the two."""
        return any(abs(real - self.simulated_s) <= tolerance * max(real, self.simulated_s) for real in self.real_s)


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The agreement of a scenario's simulated and real runs.

    `points` are those of the real run that is nearest to the simulated one; `agreements` has for each real run how many
    of its points agreed; `sometimes` has differences between real runs. `reason` says why nothing was comparable.
    """

    plan: Plan
    backend: str
    points: tuple[Point, ...] = ()
    agreements: tuple[tuple[int, int], ...] = ()
    timings: tuple[Timing, ...] = ()
    sometimes: tuple[str, ...] = ()
    not_replayed: tuple[NotReplayed, ...] = ()
    reason: str = ""
    timing_tolerance: float | None = None

    @property
    def status(self) -> Status:
        """ "parity" if the simulated outcome occurred in a real run, in every judged point."""
        if self.reason:
            return "not comparable"
        if not all(point.ok for point in self.points):
            return "difference"
        tolerance = self.timing_tolerance
        return "parity" if tolerance is None or all(t.within(tolerance) for t in self.timings) else "difference"

    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""
        return {
            "scenario": self.plan.source,
            "title": self.plan.title,
            "backend": self.backend,
            "status": self.status,
            "reason": self.reason,
            "points": [
                {"name": p.name, "rank": p.rank, "ok": p.ok, "simulated": p.simulated, "real": p.real}
                for p in self.points
            ],
            "agreements": [{"agreed": agreed, "judged": judged} for agreed, judged in self.agreements],
            "timings": [{"rank": t.rank, "simulated_s": t.simulated_s, "real_s": list(t.real_s)} for t in self.timings],
            "timing_tolerance": self.timing_tolerance,
            "sometimes": list(self.sometimes),
            "not_replayed": [{"what": each.what, "reason": each.reason} for each in self.not_replayed],
        }


def check_parity(
    plan: Plan,
    *,
    backend: str = "gloo",
    repeat: int = 1,
    patience: int = 0,
    time_scale: float | None = None,
    timing_tolerance: float | None = None,
    limit_s: float = 120.0,
    nodes: Nodes | None = None,
    seen: Callable[[RealReport], object] | None = None,
) -> ParityReport | None:
    """Run `plan` once simulated and `repeat` times on real processes, and compare.

    If none of these agrees in every point, up to `patience` more real runs are made: a busy machine can separate ranks
    that would else have acted in the same millisecond; the report then shows what happens only in some real runs.
    Faults that the machine can't inject are left out on both sides, and listed. On several `nodes` each calls this;
    node 0 gets the report, the others None. `seen` is called with each real run.

    Raises:
        SimdistError: a run failed as such.
    """
    left_out = not_replayed(plan, backend, (nodes or Nodes()).count)
    scale = plan.time_scale if time_scale is None else time_scale
    reason = unavailable(backend, plan.world_size, nodes or Nodes()) or _hopeless(plan, left_out)
    if reason:
        return ParityReport(plan, backend, not_replayed=left_out, reason=reason)
    able = without(plan, left_out)
    with Keeper() as keeper:  # for the folder, which is removed even if this process is killed
        report = run_scenario(replace(able, values="all"), record_results=True, folder=str(keeper.folder))
    simulated = account_of(report.result, report.state)
    runs: list[Account] = []
    compared: list[tuple[Point, ...]] = []
    while len(runs) < repeat or (len(runs) < repeat + patience and not any(map(_agree, compared))):
        real = replay(able, backend=backend, time_scale=scale, limit_s=limit_s, nodes=nodes)
        if real is None:
            return None
        if seen is not None:
            seen(real)
        runs.append(account_of(real.result, real.state, scale))
        compared.append((*compare(simulated, runs[-1]), *recorders(real.matches)))
    nearest = max(compared, key=lambda points: (_agree(points), sum(p.ok for p in points)))
    return ParityReport(
        plan,
        backend,
        nearest,
        tuple((sum(p.ok for p in points), len(points)) for points in compared),
        _timings(simulated, runs, scale),
        _sometimes(compared),
        left_out,
        timing_tolerance=timing_tolerance,
    )


def _agree(points: Sequence[Point]) -> bool:
    return all(point.ok for point in points)


def _hopeless(plan: Plan, left_out: Sequence[NotReplayed]) -> str:
    if any(not each.what.startswith("faults") for each in left_out):
        return str(next(each for each in left_out if not each.what.startswith("faults")))
    if plan.faults and len(left_out) == len(plan.faults):
        return "none of its faults can be injected on this machine"
    return ""


def _timings(simulated: Account, runs: Sequence[Account], scale: float) -> tuple[Timing, ...]:
    return tuple(
        Timing(rank, ns / 1e9, tuple(run.lasted_ns.get(rank, 0) / 1e9 / scale for run in runs))
        for rank, ns in sorted(simulated.lasted_ns.items())
    )


def _sometimes(compared: Sequence[Sequence[Point]]) -> tuple[str, ...]:
    """Return a line for each point in which the real runs differ."""
    seen: dict[tuple[str, int], dict[str, int]] = {}
    for points in compared:
        for point in points:
            known = seen.setdefault((point.name, point.rank), {})
            known[point.real] = known.get(point.real, 0) + 1
    lines = []
    for (name, rank), answers in seen.items():
        if len(answers) > 1 and name not in ("value",):
            who = f" of rank {rank}" if rank >= 0 else ""
            lines.append(f"{name}{who}: " + "; ".join(f"{count} x {text}" for text, count in answers.items()))
    return tuple(lines)


def exit_code(reports: Sequence[ParityReport]) -> int:
    """Return 0 for parity, 1 for a difference, 3 if nothing was comparable.

    Raises:
        SimdistError: there are no reports.
    """
    if not reports:
        raise SimdistError("no scenario was compared")
    states = [report.status for report in reports]
    if "difference" in states:
        return 1
    return 0 if "parity" in states else 3
