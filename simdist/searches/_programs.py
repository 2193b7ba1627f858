"""What is searched: a function, or a scenario. Each can be run again, with another schedule and other faults."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from simdist._replay import call_text
from simdist._settings import check_settings
from simdist.errors import ArgumentError, FaultError, ScenarioError, SimdistError, TopologyError
from simdist.faults import Fault
from simdist.result import RunResult
from simdist.scenario import Plan, alone, fault_text, importable, simulated
from simdist.searches._attempts import Attempt
from simdist.searches._outcomes import Ran

__all__ = ["FunctionProgram", "PlanProgram", "Program"]

_INPUT = (ArgumentError, FaultError, ScenarioError, TopologyError)  # what is wrong with what was given, and no finding


class Program(Protocol):
    """Something that can be run again and again."""

    def ready(self) -> Any:
        """A context inside which it can be run."""
        ...

    def run(self, attempt: Attempt) -> Ran:
        """Run it once."""
        ...

    def replay(self, attempt: Attempt) -> str:
        """The command or call that repeats a run."""
        ...


@dataclass(slots=True, kw_only=True)
class FunctionProgram:
    """A function of Python: every rank has to return, and judges to find nothing. `settings` are `simdist.run`'s."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]

    @contextmanager
    def ready(self) -> Iterator[None]:
        check_settings("simdist.explore", {"fn": self.function, **self.settings})
        yield

    def run(self, attempt: Attempt) -> Ran:
        import simdist

        try:
            result = simdist.run(self.function, **self._settings(attempt))
        except _INPUT:
            raise
        except SimdistError as error:
            return Ran(None, error=error)
        return Ran(result, tuple(_problems(result)))

    def _settings(self, attempt: Attempt) -> dict[str, Any]:
        faults = (*self.settings.get("faults", ()), *attempt.faults)
        return {**self.settings, "policy": attempt.policy, "faults": faults}

    def replay(self, attempt: Attempt) -> str:
        from simdist.api import run

        defaults = {name: each.default for name, each in inspect.signature(run).parameters.items()}
        settings = self._settings(attempt)
        return call_text("simdist.run", self.function, {**settings, "faults": list(settings["faults"])}, defaults)


def _problems(result: RunResult) -> Iterator[tuple[str, str]]:
    failed = result.first_failure()
    if failed is not None:
        yield "outcomes", f"rank {failed.rank} {failed.status}"
    if result.findings:
        yield "judges", result.findings[0].problem
    for fault in result.faults:
        if not fault.ok:
            yield "faults_strike", f"never struck: {fault.called}"


@dataclass(slots=True)
class PlanProgram:
    """A scenario, judged by its own expectations."""

    plan: Plan
    _baseline: RunResult | None = field(default=None, init=False)
    _single: RunResult | None = field(default=None, init=False)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with importable(self.plan.workload.folder, self.plan.workload.target):
            self._single = alone(self.plan)
            if self.plan.expect.needs_undisturbed:
                calm = replace(self.plan, faults=(), max_restarts=0, judges=False, policy="fifo")
                self._baseline = simulated(calm, None)[0]
            yield

    def run(self, attempt: Attempt) -> Ran:
        with importable(self.plan.workload.folder, self.plan.workload.target):
            try:
                result, verdicts = simulated(self.planned(attempt), self._baseline, self._single)
            except _INPUT:
                raise
            except SimdistError as error:
                return Ran(None, error=error)
        return Ran(result, tuple((each.name, each.evidence) for each in verdicts if not each.ok))

    def planned(self, attempt: Attempt) -> Plan:
        """The scenario with the attempt's policy and faults, as overrides too."""
        faults = (*self.plan.faults, *attempt.faults)
        overrides = [*self.plan.overrides, *overrides_of(attempt.policy, faults if attempt.faults else None)]
        return replace(self.plan, policy=attempt.policy, faults=faults, overrides=tuple(overrides))

    def replay(self, attempt: Attempt) -> str:
        return self.planned(attempt).replay


def overrides_of(policy: str, faults: Sequence[Fault] | None) -> Iterator[str]:
    """What `--set` takes for them; faults None: the file's own."""
    yield f"policy={json.dumps(policy)}"
    if faults is not None:
        yield f"faults=[{', '.join(map(fault_text, faults))}]"


def name_of(plan: Plan) -> str:
    """The file's name."""
    return Path(plan.source).name
