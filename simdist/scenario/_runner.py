"""One run of a plan, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from simdist.errors import ScenarioError
from simdist.result import RunResult
from simdist.scenario._oracles import Seen, judge
from simdist.scenario._own_judges import with_own_judges
from simdist.scenario._plan import Plan, Verdict
from simdist.scenario._run_folders import run_folder
from simdist.scenario._state import state_of
from simdist.scenario._workload import WorkloadError, fill, filled_faults, import_workload, importable

__all__ = ["Echo", "Progress", "ScenarioReport", "alone", "run_scenario", "simulate"]

Echo = Callable[[int, int, str, str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """The outcome of a scenario.

    `baseline` is the fault-free run, if an expectation needs one; `state` has a hash for each expected checkpoint.
    """

    plan: Plan
    result: RunResult
    verdicts: tuple[Verdict, ...]
    baseline: RunResult | None = None
    state: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if every expectation holds."""
        return all(verdict.ok for verdict in self.verdicts)

    def summary(self) -> dict[str, object]:
        """Return the report as JSON-ready data: the result's summary, and the expectations."""
        return {
            "scenario": self.plan.source,
            "title": self.plan.title,
            **self.result.summary(),
            "ok": self.ok,
            "seed": self.plan.seed,
            "expectations": [{"name": v.name, "ok": v.ok, "evidence": v.evidence} for v in self.verdicts],
            "replay": self.plan.replay,
        }


def run_scenario(
    plan: Plan,
    *,
    seed: int | None = None,
    echo: Echo | None = None,
    progress: Progress | None = None,
    record_results: bool = False,
    folder: str | None = None,
) -> ScenarioReport:
    """Run the plan, with `seed` in place of its own if given, and judge the result.

    `echo`, `progress` and `record_results` are those of `simdist.run`; a fault-free run for comparison is not echoed.
    The workload is imported afresh. Afterwards `sys.path` and `sys.modules` are as before, and the run's temporary
    folder (made in `folder`, if given) is removed.

    Raises:
        ScenarioError: the workload can't be imported, or no longer.
        SimdistError: the run itself can't be done.
    """
    if seed is not None:
        plan = replace(plan, seed=seed)
    with (
        importable(plan.workload.folder, plan.workload.target),
        run_folder(plan.name, plan.seed, folder) as tmp,
    ):
        result = simulate(plan, tmp, echo, progress, record_results)
        baseline = None
        if plan.expect.needs_undisturbed:
            with run_folder(f"{plan.name}-undisturbed", plan.seed, folder) as other:
                baseline = simulate(replace(plan, faults=(), max_restarts=0, judges=False), other, None, progress)
        verdicts = judge(Seen(plan, result, baseline, tmp, single=alone(plan)))
        state = state_of(plan, tmp)
    return ScenarioReport(plan, result, verdicts, baseline, state)


def alone(plan: Plan) -> RunResult | None:
    """Return the run of one rank without faults, if an expectation needs it; call it inside `importable`."""
    if plan.expect.same_as_one_rank is None:
        return None
    with run_folder(f"{plan.name}-alone", plan.seed) as tmp:
        alone = replace(plan, world_size=1, cluster={}, faults=(), max_restarts=0, min_hosts=None, judges=False)
        return simulate(alone, tmp)


def simulate(
    plan: Plan,
    tmp: str,
    echo: Echo | None = None,
    progress: Progress | None = None,
    record_results: bool = False,
    *,
    folder: str | None = None,
) -> RunResult:
    """Run the plan once, with `tmp` for its folder; call it inside `importable`.

    Folders of local disks are made in `folder`, if given.

    Raises:
        ScenarioError: the workload can't be imported.
    """
    import simdist

    try:
        function = import_workload(plan.workload)
    except WorkloadError as error:
        raise ScenarioError(plan.source, [f"workload.{error.key}: {error}"]) from error
    cluster: dict[str, Any] = {**plan.cluster}
    with ExitStack() as stack:
        disk = None
        if plan.disk is not None:
            local = None
            if plan.disk["local"]:
                local = stack.enter_context(run_folder(f"{plan.name}-local", plan.seed, folder))
            mount: dict[str, Any] = {**plan.disk, "local": local}
            disk = simdist.storage.Mount(folder=tmp, **mount)
        return simdist.run(
            function,
            world_size=plan.world_size,
            args=fill(plan.workload.args, tmp),
            kwargs=fill(plan.workload.kwargs, tmp),
            backend=plan.backend,
            seed=plan.seed,
            disk=disk,
            cluster=simdist.cluster.make(plan.world_size, **cluster) if cluster else None,
            faults=filled_faults(plan.faults, tmp),
            max_restarts=plan.max_restarts,
            min_hosts=plan.min_hosts,
            env=dict(plan.env),
            policy=plan.policy,
            start_time=plan.start_time,
            program_ns=plan.program_ns,
            stall_s=plan.stall_s,
            isolate=plan.isolate,
            share=plan.share,
            strict=plan.strict,
            judges=with_own_judges(plan.source, plan.judges),
            record_results=record_results,
            values=plan.values,
            echo=echo,
            progress=progress,
            replay=plan.replay,
        )
