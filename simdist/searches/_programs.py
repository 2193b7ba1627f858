"""What is searched: a function, or a scenario. Each can be run again, with another schedule and other faults."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simdist._replay import call_text
from simdist._settings import SETTINGS, check_settings
from simdist.errors import ArgumentError, FaultError, ScenarioError, SimdistError, TopologyError
from simdist.faults import Fault
from simdist.result import RunResult
from simdist.scenario import Plan, alone, fault_text, importable, load, simulated, undisturbed
from simdist.searches._attempts import Attempt
from simdist.searches._outcomes import EndlessError, Ran
from simdist.values import guess_or_list

__all__ = ["TAKEN", "Bounds", "FunctionProgram", "PlanProgram", "Program", "count_problems", "overrides_of"]

TAKEN = ("policy", "progress", "echo", "replay", "record_results")
"""Settings of `simdist.run` that each search has for itself."""

_STEPS = ("step", "epoch", "iter", "batches", "rounds")  # in the names of what counts them
_TIMES, _EVENTS = 30, 30_000  # events of a run: so many times those of the first, and so many more
_INPUT = (ArgumentError, FaultError, ScenarioError, TopologyError)  # what is wrong with what was given, and no finding


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a run may be: so many events, as a program that asks for ever for what never comes has no end."""

    events: int | None = None
    settled_ns: int = 0  # virtual time from which on everything has healed

    @classmethod
    def of(cls, plain: RunResult, longest_ns: int) -> Bounds:
        """Those for runs with faults that last so long, of a program that runs like `plain` without."""
        return cls(_TIMES * len(plain.events) + _EVENTS, plain.virtual_time_ns + longest_ns)

    def watch(self, now_ns: int, events: int) -> None:
        """End the run if it is too long; called during it about ten times in a second, and at its end.

        Raises:
            EndlessError: it is.
        """
        if self.events is not None and events > self.events:
            raise EndlessError(self.events, settled=now_ns > self.settled_ns)


class Program(Protocol):
    """Something that can be run again and again."""

    def ready(self) -> Any:
        """A context inside which it can be run."""
        ...

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        """Run it once, and no longer than the bounds say."""
        ...

    def replay(self, attempt: Attempt) -> str:
        """The command or call that repeats a run."""
        ...

    def smaller(self) -> Iterator[Program]:
        """The same with fewer ranks, or fewer steps."""
        ...


@dataclass(slots=True, kw_only=True)
class FunctionProgram:
    """A function of Python: every rank has to return, and judges to find nothing. `settings` are `simdist.run`'s.

    `caller` is the name of the search, for its errors.
    """

    caller: str
    function: Callable[..., Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        caller: str,
        function: Callable[..., Any],
        settings: Mapping[str, Any],
        *,
        taken: Sequence[str] = TAKEN,
        problems: Iterable[str],
    ) -> FunctionProgram:
        """A function as a user gives it. `taken` are settings that are the search's; `problems` what is wrong besides.

        Raises:
            ArgumentError: names everything that is wrong.
        """
        known = [name for name in SETTINGS if name not in (*taken, "nprocs", "join", "fn")]
        found = [f"{name}: a search has its own" for name in settings if name in taken]
        unknown = [name for name in settings if name not in (*known, *taken)]
        found += [f"{name}: unknown argument{guess_or_list(name, known)}" for name in unknown]
        found += problems
        if found:
            raise ArgumentError(caller, found)
        return cls(caller=caller, function=function, settings=settings)

    @contextmanager
    def ready(self) -> Iterator[None]:
        check_settings(self.caller, {"fn": self.function, **self.settings})
        yield

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        import simdist

        bounds = bounds or Bounds()
        try:
            result = simdist.run(self.function, **self._settings(attempt), progress=bounds.watch)
            bounds.watch(result.virtual_time_ns, len(result.events))
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

    def smaller(self) -> Iterator[Program]:
        size = self.settings["world_size"]
        if self.settings.get("cluster") is None:
            for fewer in dict.fromkeys((2, size // 2, size - 1)):
                if 1 <= fewer < size:
                    yield replace(self, settings={**self.settings, "world_size": fewer})
        kwargs = self.settings.get("kwargs") or {}
        for name, value in _fewer_steps(kwargs):
            yield replace(self, settings={**self.settings, "kwargs": {**kwargs, name: value}})


def count_problems(**counts: object) -> Iterator[str]:
    """What is wrong with numbers of which 1 is the least."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield f"{name}: {value!r} is no count; 1 is the least"


def _fewer_steps(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """For each keyword argument that counts steps or the like, smaller counts."""
    for name, value in kwargs.items():
        if isinstance(value, int) and not isinstance(value, bool) and any(word in name.lower() for word in _STEPS):
            yield from ((name, fewer) for fewer in dict.fromkeys((1, value // 2, value - 1)) if 1 <= fewer < value)


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
    _baseline: RunResult | None = field(default=None, init=False, compare=False)
    _single: RunResult | None = field(default=None, init=False, compare=False)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with importable(self.plan.workload.folder, self.plan.workload.target):
            self._single = alone(self.plan)
            if self.plan.expect.needs_undisturbed:
                calm = replace(self.plan, faults=(), max_restarts=0, judges=False, policy="fifo")
                self._baseline = simulated(calm, None)[0]
            yield

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        bounds = bounds or Bounds()
        with importable(self.plan.workload.folder, self.plan.workload.target):
            try:
                plan = self.planned(attempt)
                result, verdicts = simulated(plan, self._baseline, self._single, progress=bounds.watch)
                bounds.watch(result.virtual_time_ns, len(result.events))
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

    def smaller(self) -> Iterator[Program]:
        size = self.plan.world_size
        wanted = [f"world_size={fewer}" for fewer in dict.fromkeys((2, size // 2, size - 1)) if 1 <= fewer < size]
        wanted += [f"workload.kwargs.{name}={fewer}" for name, fewer in _fewer_steps(self.plan.workload.kwargs)]
        for override in wanted:
            try:
                key = override.partition("=")[0]
                others = [each for each in self.plan.overrides if each.partition("=")[0] != key]
                plan = load(self.plan.source, overrides=(*others, override))
            except ScenarioError:  # a cluster, or an expectation, needs as many
                continue
            yield PlanProgram(replace(undisturbed(plan), seed=self.plan.seed))


def overrides_of(policy: str, faults: Sequence[Fault] | None) -> Iterator[str]:
    """What `--set` takes for them; faults None: the file's own."""
    yield f"policy={json.dumps(policy)}"
    if faults is not None:
        yield f"faults=[{', '.join(map(fault_text, faults))}]"
