"""One replay of a plan on real processes, and its report."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from simdist.errors import SimdistError
from simdist.hardware._job import Job, Wait
from simdist.hardware._keeper import Keeper
from simdist.hardware._launch import Nodes, launch
from simdist.hardware.compare._account import in_virtual_time
from simdist.hardware.compare._match import Match
from simdist.hardware.compare._outcome import matches_of, outcome_of
from simdist.hardware.compare._portable import NotReplayed, not_replayed
from simdist.result import RunResult
from simdist.scenario import Plan, Verdict, fill, filled_faults, judge_real, state_of
from simdist.values import Json

__all__ = ["RealReport", "replay", "unavailable", "without"]


@dataclass(frozen=True, slots=True)
class RealReport:
    """The outcome of a real run of a scenario.

    `not_replayed` lists the parts that were left out, and why; `matches` has torch's own flight record of each rank and
    life that left one, compared with simdist's.
    """

    plan: Plan
    backend: str
    time_scale: float
    result: RunResult
    verdicts: tuple[Verdict, ...]
    not_replayed: tuple[NotReplayed, ...]
    baseline: RunResult | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()

    @property
    def ok(self) -> bool:
        """True if everything was replayed, every expectation that can be judged holds, and both recorders agree."""
        agreed = not any(match.disagreement for match in self.matches)
        return agreed and not self.not_replayed and all(verdict.ok for verdict in self.verdicts)

    def summary(self) -> dict[str, Json]:
        """Return the report as JSON-ready data."""
        return {
            "scenario": self.plan.source,
            "title": self.plan.title,
            "real": self.backend,
            "time_scale": self.time_scale,
            **self.result.summary(),
            "ok": self.ok,
            "expectations": [{"name": v.name, "ok": v.ok, "evidence": v.evidence} for v in self.verdicts],
            "not_replayed": [{"what": each.what, "reason": each.reason} for each in self.not_replayed],
            "flight_records": [match.summary() for match in self.matches],
        }


def replay(
    plan: Plan,
    *,
    backend: str = "gloo",
    time_scale: float | None = None,
    limit_s: float = 120.0,
    nodes: Nodes | None = None,
    wait: Wait = "",
    keep: Path | None = None,
) -> RealReport | None:
    """Run the plan as real processes, and judge the result.

    `time_scale` (default: the plan's) multiplies every timeout, sleep and fault time. A rank that has not ended after
    `limit_s` seconds counts as hung. On several `nodes` each calls this; node 0 gets the report, the others None.
    `keep` is a folder for the run's files, `{tmp}` included; without it they are removed after the run.

    Raises:
        SimdistError: the machine has no such backend, or the launcher failed.
    """
    missing = unavailable(backend, plan.world_size, nodes or Nodes())
    if missing:
        raise SimdistError(missing)
    scale = plan.time_scale if time_scale is None else time_scale
    left_out = not_replayed(plan, backend, (nodes or Nodes()).count)
    able = without(plan, left_out)
    with Keeper(keep) as keeper:
        tmp = str(keeper.folder / "tmp")
        done = _run(able, backend, scale, limit_s, nodes or Nodes(), wait, keeper)
        if done is None:
            return None
        result, matches = done
        baseline = None
        if plan.expect.same_as_without_faults is not None:
            bare = replace(able, faults=(), max_restarts=0)
            with Keeper() as other:
                undisturbed = _run(bare, backend, scale, limit_s, nodes or Nodes(), wait, other)
            baseline = undisturbed[0] if undisturbed else None
        verdicts = judge_real(able, result, baseline, tmp, functools.partial(in_virtual_time, scale=scale))
        state = state_of(able, tmp)
    return RealReport(plan, backend, scale, result, verdicts, left_out, baseline, state, matches)


def unavailable(backend: str, world_size: int, nodes: Nodes) -> str:
    """Return why this machine can't run `backend`, empty if it can."""
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return "this build of torch has no torch.distributed"
    if backend == "gloo":
        return "" if dist.is_gloo_available() else "this build of torch has no Gloo"
    if not dist.is_nccl_available():
        return "this build of torch has no NCCL"
    count = torch.cuda.device_count()
    needed = world_size // nodes.count
    return "" if count >= needed else f"NCCL needs a GPU for each rank: {needed} ranks here, {count} GPUs"


def without(plan: Plan, left_out: tuple[NotReplayed, ...]) -> Plan:
    """Return the plan without the faults that can't be replayed."""
    names = [each.what.partition(" ")[0] for each in left_out]
    return replace(plan, faults=tuple(f for i, f in enumerate(plan.faults) if f"faults[{i}]" not in names))


def _run(
    plan: Plan, backend: str, scale: float, limit_s: float, nodes: Nodes, wait: Wait, keeper: Keeper
) -> tuple[RunResult, tuple[Match, ...]] | None:
    tmp, out = keeper.folder / "tmp", keeper.folder / "run"
    for each in (tmp, out):
        each.mkdir(parents=True, exist_ok=True)
    job = Job(
        target=plan.workload.target,
        folder=str(plan.workload.folder),
        args=fill(plan.workload.args, str(tmp)),
        kwargs=fill(plan.workload.kwargs, str(tmp)),
        world_size=plan.world_size,
        backend=backend,
        seed=plan.seed,
        max_restarts=plan.max_restarts,
        time_scale=scale,
        limit_s=limit_s,
        out=str(out),
        board=("", 0),
        key=b"",
        faults=filled_faults(plan.faults, str(tmp)),
        env=dict(plan.env),
        wait=wait,
    )
    seen = launch(job, nodes, keeper)
    if seen is None:
        return None
    matches = matches_of(seen)
    return outcome_of(seen, f"{plan.replay} --real {backend}", matches), matches
