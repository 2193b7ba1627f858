"""What is swept: a scenario, or a function. Each is run once undisturbed, and then once for each crash."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from simdist._observer import observed_by
from simdist.faults import Fault
from simdist.result import RankResult, RunResult
from simdist.scenario import (
    Expectations,
    Plan,
    alone,
    difference,
    fill,
    importable,
    judge_training,
    lost_words,
    simulated,
    undisturbed,
)
from simdist.storage import Mount
from simdist.sweeps._calls import Call
from simdist.sweeps._points import Case, Watcher
from simdist.sweeps._scratch import scratch_folder
from simdist.sweeps._second_lives import KnownEndError, Problems, SecondLife, SecondLives, left_in

__all__ = ["Ends", "FunctionProgram", "PlanProgram", "Program", "Ran", "struck_plan"]


_LOST = "max_steps_lost"


@dataclass(frozen=True, slots=True)
class Ran:
    """A run, and what is wrong with it: for each oracle that failed its name and what was seen.

    `left` is what its crashes have left on the disk, `begun` names what its last life found. Without a result it was
    ended where that life began, since its end is known.
    """

    problems: Problems
    left: tuple[tuple[str, str], ...] = ()
    begun: str | None = None
    result: RunResult | None = None


class Ends:
    """Runs to their end, or, if it `merges`, as far as it takes to know it.

    `steps_lost` is how many may be, if anybody asks.
    """

    def __init__(self, steps_lost: int | None, *, merges: bool) -> None:
        self.merges = merges
        self._lives = SecondLives(merges=merges)
        self._steps_lost = steps_lost

    def of(self, case: Case, run: Callable[[], Ran]) -> Ran:
        """What becomes of a crash. `run` does it."""
        life = None if case.left is None else self._lives.known(case.left)
        if life is not None and case.left is not None:
            known = self._known(self._lives.name(case.left), life, case.point.reached)
            if not known.problems:
                return known
        try:
            with self._lives.of_one_run(len(case.faults)) as remember:
                ran = run()
        except KnownEndError as end:
            return replace(self._known(end.name, end.life, end.reached, end.lost), left=end.left)
        assert ran.result is not None
        return replace(ran, begun=remember(ran.result, tuple(each for each in ran.problems if each[0] != _LOST)))

    @property
    def lives(self) -> SecondLives:
        """What is known of second lives."""
        return self._lives

    def _known(self, name: str, life: SecondLife, reached: int, lost: int = 0) -> Ran:
        problems = life.problems
        lost = lost if life.first_step is None else max(reached - life.first_step, lost)
        if self._steps_lost is not None and lost > self._steps_lost:
            problems = (*problems, (_LOST, lost_words(lost, self._steps_lost)))
        return Ran(problems, begun=name)


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

    @property
    def has_local_disks(self) -> bool:
        """True if each host has one of its own."""
        ...

    @property
    def merges(self) -> bool:
        """True if a run ends where its second life is known."""
        ...

    def ready(self) -> AbstractContextManager[None]:
        """Inside, it can be run."""
        ...

    def strike(self, case: Case, watcher: Watcher | None = None) -> Ran:
        """Run it with a crash, and start it again. With a watcher the run goes to its end."""
        ...

    @property
    def called(self) -> str:
        """The command or call that runs it."""
        ...

    def replay(self, case: Case) -> str:
        """The command or call that repeats a run with this crash."""
        ...


class PlanProgram:
    """A scenario, judged by its own expectations. Its own faults strike in every run."""

    def __init__(self, plan: Plan, *, merge: bool = True) -> None:
        self._plan = undisturbed(plan)
        self._baseline: RunResult | None = None
        self._single: RunResult | None = None
        self._folder: str | None = None  # in which each run makes its own; None: the usual one
        expect = plan.expect
        bounds = (expect.min_virtual_time_ns, expect.max_virtual_time_ns, expect.max_events)
        apart = plan.isolate is not False and not plan.share
        self._ends = Ends(expect.max_steps_lost, merges=merge and apart and bounds == (None, None, None))

    @property
    def hosts(self) -> int:
        return int(self._plan.cluster.get("hosts", 1))

    @property
    def has_disk(self) -> bool:
        return self._plan.disk is not None

    @property
    def has_local_disks(self) -> bool:
        return self._plan.disk is not None and bool(self._plan.disk["local"])

    @contextmanager
    def ready(self) -> Iterator[None]:
        # Modules on the host are looked at by no rank, unless ranks share them.
        with self._importable() if self._plan.isolate is not False else nullcontext():
            yield

    def _importable(self) -> AbstractContextManager[None]:
        return importable(self._plan.workload.folder, self._plan.workload.target)

    def watch(self, watcher: Watcher) -> Ran:
        self._single = alone(self._plan)
        with observed_by(watcher):
            ran = self._run(self._plan)
        self._baseline = ran.result
        assert ran.result is not None
        self._folder = scratch_folder(ran.result.events)
        self._ends.lives.outcomes = watcher.found
        return ran

    def strike(self, case: Case, watcher: Watcher | None = None) -> Ran:
        struck = struck_plan(self._plan, case)
        if watcher is not None:
            with observed_by(watcher):
                return self._run(struck)
        return self._ends.of(case, lambda: self._run(struck))

    @property
    def merges(self) -> bool:
        return self._ends.merges

    def learnt(self) -> dict[str, SecondLife]:
        """The second lives that have been seen to their ends, by what they found."""
        return dict(self._ends.lives.seen)

    def learn(self, lives: Mapping[str, SecondLife]) -> None:
        """Another process has seen these."""
        self._ends.lives.learn(lives)

    def _run(self, plan: Plan) -> Ran:
        with self._importable() if plan.isolate is False else nullcontext():
            result, verdicts = simulated(plan, self._baseline, self._single, folder=self._folder)
        problems = tuple((each.name, each.evidence) for each in verdicts if not each.ok)
        return Ran(problems, left_in(result.events), result=result)

    @property
    def called(self) -> str:
        return self._plan.replay

    def replay(self, case: Case) -> str:
        overrides = _overrides(self._plan, case.faults)
        if case.loses_hosts:
            overrides.append(f"min_hosts={self.hosts - 1}")
        return replace(self._plan, overrides=(*self._plan.overrides, *overrides)).replay


def struck_plan(plan: Plan, case: Case) -> Plan:
    """The plan with a crash. After the loss of a host nothing is expected that takes all ranks."""
    faults = case.faults
    plan = replace(plan, faults=faults, max_restarts=max(plan.max_restarts, len(faults)))
    if not case.loses_hosts:
        return plan
    expect = replace(
        plan.expect,
        same_as_without_faults=None,
        same_states_as_without_faults=False,
        same_as_one_rank=None,
        samples_once=None,
        exceptions={},
    )
    return replace(plan, min_hosts=int(plan.cluster.get("hosts", 1)) - 1, expect=expect)


def _overrides(plan: Plan, faults: Sequence[Fault]) -> list[str]:
    from simdist.scenario import fault_text

    lines = [f"faults=[{', '.join(map(fault_text, faults))}]"]
    return lines if plan.max_restarts >= len(faults) else [*lines, f"max_restarts={len(faults)}"]


@dataclass(slots=True, kw_only=True)
class FunctionProgram:
    """A function of Python: every rank has to return in the end, and what it did undisturbed."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    disk: Mapping[str, Any] | None = None
    local: bool = False  # each host has a disk of its own
    steps_lost: int | None = None
    check: Callable[[RunResult, str], str | None] | None = None
    expect: Expectations | None = None  # of states, samples, files and late writes
    merge: bool = True  # end a run whose second life is known
    call: Call | None = None  # the sweep
    baseline: RunResult | None = None
    folder: str | None = field(default=None, init=False)  # in which each run makes its own; None: the usual one
    ends: Ends = field(init=False)

    def __post_init__(self) -> None:
        self.ends = Ends(self.steps_lost, merges=self.merge and self.check is None and self._keeps_nothing())

    @property
    def merges(self) -> bool:
        return self.ends.merges

    def _keeps_nothing(self) -> bool:
        """True if nothing of a life but its files outlives it: no module, and no object."""
        isolated = self.settings.get("isolate", False) is not False and not self.settings.get("share")
        closes_over = getattr(self.function, "__closure__", None) or not hasattr(self.function, "__code__")
        return isolated and not closes_over and all(map(_is_constant, (*self.args, *(self.kwargs or {}).values())))

    @property
    def hosts(self) -> int:
        cluster = self.settings.get("cluster")
        return 1 if cluster is None else len(cluster.hosts)

    @property
    def has_disk(self) -> bool:
        return True

    @property
    def has_local_disks(self) -> bool:
        return self.local

    def watch(self, watcher: Watcher) -> Ran:
        ran = self._run((), watcher)
        self.baseline = ran.result
        assert ran.result is not None
        self.folder = scratch_folder(ran.result.events)
        self.ends.lives.outcomes = watcher.found
        return ran

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def strike(self, case: Case, watcher: Watcher | None = None) -> Ran:
        run = functools.partial(self._run, case.faults, watcher, fewer=case.loses_hosts)
        return run() if watcher is not None else self.ends.of(case, run)

    def _run(self, faults: Sequence[Fault], watcher: Watcher | None, *, fewer: bool = False) -> Ran:
        import simdist
        from simdist.scenario import lost_steps

        with (
            tempfile.TemporaryDirectory(prefix="simdist-", dir=self.folder, ignore_cleanup_errors=True) as tmp,
            tempfile.TemporaryDirectory(prefix="simdist-", dir=self.folder, ignore_cleanup_errors=True) as local,
            nullcontext() if watcher is None else observed_by(watcher),
        ):
            restarts = max(int(self.settings.get("max_restarts", 0)), len(faults))
            result = simdist.run(
                self.function,
                args=fill(tuple(self.args), tmp),
                kwargs=fill(dict(self.kwargs or {}), tmp),
                disk=Mount(folder=tmp, local=local if self.local else None, **(self.disk or {})),
                faults=(*self.settings.get("faults", ()), *faults),
                **{
                    **{k: v for k, v in self.settings.items() if k != "faults"},
                    "max_restarts": restarts,
                    **({"min_hosts": self.hosts - 1} if fewer else {}),
                },
            )
            problems: list[tuple[str, str]] = []
            failed = result.first_failure()
            if failed is not None:
                problems.append(("outcomes", f"rank {failed.rank} {_ended(failed)}"))
            elif self.baseline is not None and not fewer:
                for rank, other in zip(result.ranks, self.baseline.ranks, strict=True):
                    text = difference(rank.value, other.value)
                    if text is not None:
                        problems.append(("same_as_without_faults", f"rank {rank.rank} differs at {text} undisturbed"))
                        break
            if self.steps_lost is not None:
                lost = lost_steps(result.events)
                if lost > self.steps_lost:
                    problems.append(
                        (
                            _LOST,
                            lost_words(lost, self.steps_lost),
                        )
                    )
            if self.expect is not None and not fewer:
                undisturbed = result if self.baseline is None else self.baseline
                verdicts = judge_training(self.expect, result.events, undisturbed.events, tmp)
                problems += [(each.name, each.evidence) for each in verdicts if not each.ok]
            said = None if self.check is None else self.check(result, tmp)
            if said:
                problems.append(("check", said))
            problems = [(name, text.replace(tmp, "{tmp}").replace(local, "{local}")) for name, text in problems]
        return Ran(tuple(problems), left_in(result.events), result=result)

    @property
    def called(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{name} {sorted(self.settings.items(), key=str)} {self.args} {self.kwargs} {self.disk}"

    def replay(self, case: Case) -> str:
        if self.call is not None:
            return self.call.text(case.faults)
        fewer = f", min_hosts={self.hosts - 1}" if case.loses_hosts else ""
        return f"simdist.run(..., faults={list(case.faults)!r}, max_restarts={len(case.faults)}{fewer})"


def _is_constant(value: object) -> bool:
    """True if no rank can change it for others."""
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, str | bytes | int | float | complex)


def _ended(rank: RankResult) -> str:
    if rank.exception is not None:
        first = str(rank.exception).partition("\n")[0]
        return f"raised {type(rank.exception).__name__}{': ' if first else ''}{first}"
    if rank.status == "exited":
        return f"exited with code {rank.exit_code}"
    return "was killed" if rank.status == "killed" else f"hangs in {rank.waiting}"
