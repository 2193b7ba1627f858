"""A scenario that runs many times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from simdist.errors import ScenarioError
from simdist.faults import Fault
from simdist.programs._attempt import Attempt, Bounds, Problems, Program, Progress, Ran, fewer_steps, ran_within
from simdist.programs._scratch import scratch_folder
from simdist.result import RunResult
from simdist.scenario import Plan, alone, fault_text, import_workload, importable, load, simulated, undisturbed

__all__ = ["PlanProgram", "overrides_of"]


@dataclass(slots=True)
class PlanProgram:
    """A scenario, judged by its own expectations."""

    plan: Plan
    _plain: RunResult | None = field(default=None, init=False, compare=False)
    _single: RunResult | None = field(default=None, init=False, compare=False)
    _folder: str | None = field(default=None, init=False, compare=False)  # of the runs' folders; None: the usual one

    def __reduce__(self) -> tuple[Any, ...]:
        # Classes of faults in the scenario's folder can't be imported by name: these faults are read again from the
        # file.
        own = any(not type(fault).__module__.startswith("simdist.") for fault in self.plan.faults)
        return (_with_faults_of_file, (replace(self.plan, faults=()),)) if own else (PlanProgram, (self.plan,))

    @property
    def hosts(self) -> int:
        return hosts if isinstance(hosts := self.plan.cluster.get("hosts"), int) else 1

    @property
    def has_disk(self) -> bool:
        return self.plan.disk is not None

    @property
    def has_local_disks(self) -> bool:
        return self.plan.disk is not None and bool(self.plan.disk["local"])

    @property
    def has_devices(self) -> bool:
        return self.plan.backend == "nccl" or bool(self.plan.cluster.get("devices_per_host"))

    @property
    def moves_payloads(self) -> bool:
        return self.plan.values == "all"

    @property
    def forgets(self) -> bool:
        return self.plan.isolate is not False and not self.plan.share

    def fresh(self) -> PlanProgram:
        return PlanProgram(self.plan)

    def warm(self) -> None:
        with self._importable():
            import_workload(self.plan.workload)

    @contextmanager
    def ready(self) -> Iterator[None]:
        # No rank sees modules of the host, unless ranks share them: then each run imports them afresh.
        with self._importable() if self.forgets else nullcontext():
            with self._afresh():
                self._single = alone(self.plan)
            yield

    def _afresh(self) -> AbstractContextManager[None]:
        return nullcontext() if self.forgets else self._importable()

    def _importable(self) -> AbstractContextManager[None]:
        return importable(self.plan.workload.folder, self.plan.workload.target)

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        with self._afresh():
            is_first = self._plain is None and attempt.is_plain
            if self._plain is None and self.plan.expect.needs_undisturbed and (self.plan.faults or not is_first):
                calm = replace(self.plan, faults=(), max_restarts=0, judges=False, policy="fifo")
                self._plain = simulated(calm, None)[0]
            ran = ran_within(bounds, lambda progress: self._run(attempt, progress))
        if is_first and ran.result is not None:
            self._plain, self._folder = self._plain or ran.result, scratch_folder(ran.result.events)
        return ran

    def _run(self, attempt: Attempt, progress: Progress | None) -> tuple[RunResult, Problems]:
        plan = self.planned(attempt)
        result, verdicts = simulated(plan, self._plain, self._single, folder=self._folder, progress=progress)
        return result, tuple((each.name, each.evidence) for each in verdicts if not each.ok)

    def planned(self, attempt: Attempt) -> Plan:
        """Return the scenario with the attempt's policy and faults, which are in its overrides, too."""
        plan, faults = self.plan, (*self.plan.faults, *attempt.faults)
        restarts = max(plan.max_restarts, attempt.restarts)
        overrides = [*plan.overrides, *overrides_of(attempt.policy, faults if attempt.faults else None)]
        overrides += [f"max_restarts={restarts}"] if restarts > plan.max_restarts else []
        changes: dict[str, Any] = {"policy": attempt.policy or plan.policy, "faults": faults, "max_restarts": restarts}
        if attempt.fewer_hosts:
            hosts = self.hosts - 1
            overrides.append(f"min_hosts={hosts}")
            none: dict[str, Any] = {"same_as_without_faults": None, "same_as_one_rank": None, "samples_once": None}
            expect = replace(plan.expect, **none, same_states_as_without_faults=False, exceptions={})
            changes |= {"min_hosts": hosts, "expect": expect}
        return replace(plan, **changes, overrides=tuple(overrides))

    def replay(self, attempt: Attempt) -> str:
        return self.planned(attempt).replay

    def smaller(self) -> Iterator[Program]:
        size = self.plan.world_size
        wanted = [f"world_size={fewer}" for fewer in dict.fromkeys((2, size // 2, size - 1)) if 1 <= fewer < size]
        wanted += [f"workload.kwargs.{name}={fewer}" for name, fewer in fewer_steps(self.plan.workload.kwargs)]
        for override in wanted:
            try:
                key = override.partition("=")[0]
                others = [each for each in self.plan.overrides if each.partition("=")[0] != key]
                plan = load(self.plan.source, overrides=(*others, override))
            except ScenarioError:  # a cluster, or an expectation, needs that many
                continue
            yield PlanProgram(replace(undisturbed(plan), seed=self.plan.seed))


def _with_faults_of_file(plan: Plan) -> PlanProgram:
    return PlanProgram(replace(plan, faults=load(plan.source, overrides=plan.overrides).faults))


def overrides_of(policy: str, faults: Sequence[Fault] | None) -> Iterator[str]:
    """Yield overrides for `--set`; an empty policy, and faults None, keep the file's own."""
    if policy:
        yield f"policy={json.dumps(policy)}"
    if faults is not None:
        yield f"faults=[{', '.join(map(fault_text, faults))}]"
