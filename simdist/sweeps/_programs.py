"""What is swept: a scenario, or a function. Each is run once undisturbed, and then once for each crash."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from simdist._observer import observed_by
from simdist.faults import Fault
from simdist.result import RankResult, RunResult
from simdist.scenario import Plan, difference, fill, simulated, undisturbed
from simdist.storage import Mount
from simdist.sweeps._points import Watcher

__all__ = ["FunctionProgram", "PlanProgram", "Program", "Ran"]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run, and what is wrong with it: for each oracle that failed its name and what was seen."""

    result: RunResult
    problems: tuple[tuple[str, str], ...]


class Program(Protocol):
    """Something that can be run again and again."""

    @property
    def hosts(self) -> int:
        """How many hosts it runs on."""
        ...

    @property
    def has_disk(self) -> bool:
        """True if there is a disk to lose things from."""
        ...

    def watch(self, watcher: Watcher) -> Ran:
        """Run it undisturbed, watched. What comes out is what later runs are held against."""
        ...

    def strike(self, fault: Fault) -> Ran:
        """Run it with a fault, and start it again."""
        ...

    def replay(self, fault: Fault) -> str:
        """The command or call that repeats that run."""
        ...


class PlanProgram:
    """A scenario, judged by its own expectations. Its own faults strike in every run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = undisturbed(plan)
        self._baseline: RunResult | None = None

    @property
    def hosts(self) -> int:
        return int(self._plan.cluster.get("hosts", 1))

    @property
    def has_disk(self) -> bool:
        return self._plan.disk is not None

    def watch(self, watcher: Watcher) -> Ran:
        with observed_by(watcher):
            ran = self._run(self._plan)
        self._baseline = ran.result
        return ran

    def strike(self, fault: Fault) -> Ran:
        plan = self._plan
        return self._run(replace(plan, faults=(*plan.faults, fault), max_restarts=max(plan.max_restarts, 1)))

    def _run(self, plan: Plan) -> Ran:
        result, verdicts = simulated(plan, self._baseline)
        return Ran(result, tuple((each.name, each.evidence) for each in verdicts if not each.ok))

    def replay(self, fault: Fault) -> str:
        return replace(self._plan, overrides=(*self._plan.overrides, *_overrides(self._plan, fault))).replay


def _overrides(plan: Plan, fault: Fault) -> list[str]:
    from simdist.scenario import fault_text

    lines = [f"faults=[{fault_text(fault)}]"]
    return lines if plan.max_restarts else [*lines, "max_restarts=1"]


@dataclass(slots=True, kw_only=True)
class FunctionProgram:
    """A function of Python: every rank has to return in the end, and what it did undisturbed."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    disk: Mapping[str, Any] | None = None
    steps_lost: int | None = None
    check: Callable[[RunResult, str], str | None] | None = None
    baseline: RunResult | None = None

    @property
    def hosts(self) -> int:
        cluster = self.settings.get("cluster")
        return 1 if cluster is None else len(cluster.hosts)

    @property
    def has_disk(self) -> bool:
        return True

    def watch(self, watcher: Watcher) -> Ran:
        ran = self._run((), watcher)
        self.baseline = ran.result
        return ran

    def strike(self, fault: Fault) -> Ran:
        return self._run((fault,), None)

    def _run(self, faults: Sequence[Fault], watcher: Watcher | None) -> Ran:
        import simdist
        from simdist.scenario import lost_steps, lost_words

        with (
            tempfile.TemporaryDirectory(prefix="simdist-", ignore_cleanup_errors=True) as tmp,
            nullcontext() if watcher is None else observed_by(watcher),
        ):
            restarts = max(int(self.settings.get("max_restarts", 0)), 1) if faults else 0
            result = simdist.run(
                self.function,
                args=fill(tuple(self.args), tmp),
                kwargs=fill(dict(self.kwargs or {}), tmp),
                disk=Mount(folder=tmp, **(self.disk or {})),
                faults=(*self.settings.get("faults", ()), *faults),
                **{**{k: v for k, v in self.settings.items() if k != "faults"}, "max_restarts": restarts},
            )
            problems = []
            failed = result.first_failure()
            if failed is not None:
                problems.append(("outcomes", f"rank {failed.rank} {_ended(failed)}"))
            elif self.baseline is not None:
                for rank, other in zip(result.ranks, self.baseline.ranks, strict=True):
                    text = difference(rank.value, other.value)
                    if text is not None:
                        problems.append(("same_as_without_faults", f"rank {rank.rank} differs at {text} undisturbed"))
                        break
            if self.steps_lost is not None:
                lost = lost_steps(result)
                if lost > self.steps_lost:
                    problems.append(
                        (
                            "max_steps_lost",
                            lost_words(lost, self.steps_lost),
                        )
                    )
            said = None if self.check is None else self.check(result, tmp)
            if said:
                problems.append(("check", said))
        return Ran(result, tuple(problems))

    def replay(self, fault: Fault) -> str:
        return f"simdist.run(..., faults=[{fault!r}], max_restarts=1)"


def _ended(rank: RankResult) -> str:
    if rank.exception is not None:
        first = str(rank.exception).partition("\n")[0]
        return f"raised {type(rank.exception).__name__}{': ' if first else ''}{first}"
    if rank.status == "exited":
        return f"exited with code {rank.exit_code}"
    return "was killed" if rank.status == "killed" else f"hangs in {rank.waiting}"
