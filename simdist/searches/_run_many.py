"""`simdist.run_many`: one program with many seeds, in parallel; for a function and for a scenario."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from simdist.errors import ArgumentError, FaultError, TopologyError
from simdist.programs import (
    FEW,
    Attempt,
    FunctionProgram,
    PlanProgram,
    Problems,
    Ran,
    Seen,
    Worker,
    Workers,
    cores,
    kept_when_interrupted,
    no_logs_of_ranks,
    ran_within,
    said_by,
    setting_problems,
    watched,
    workers_problems,
)
from simdist.result import RunResult
from simdist.scenario import Plan, run_scenario
from simdist.searches._many_report import ManyReport, SingleRun
from simdist.searches._outcomes import Cause, cause_of, outcome_of
from simdist.searches._tokens import token_of
from simdist.settings import SETTINGS, check_fitting, misfits
from simdist.values import PYTHON, Unfit, items_of

if TYPE_CHECKING:
    from simdist.settings import CheckedSettings, RunManySettings

__all__ = ["run_many", "run_plan_many"]

Progress = Callable[[int, int, int], None]
"""Called with how many runs are done, how many there are, and how many causes of failures were seen."""

_NOT_TAKEN: Mapping[str, str] = {
    "disk": "all runs would use the folder of one disk; a scenario has a disk for each run",
    "echo": "what many runs print would be mixed up; run one of them by its replay",
    "replay": "each run has its own",
}
"""Settings of `simdist.run` that make no sense for many runs, and why."""

_SEED = SETTINGS["seed"]


def run_many(
    fn: Callable[..., object],
    *,
    world_size: int,
    seeds: int | Iterable[int] | None = None,
    variants: Sequence[Mapping[str, object]] | None = None,
    check: Callable[[RunResult], str | None] | None = None,
    until_failure: bool = False,
    workers: int | str | None = None,
    progress: Progress | None = None,
    **settings: Unpack[RunManySettings],
) -> ManyReport:
    """Run `fn` once for each seed, over all cores, and report the runs that failed.

    Each is a run of `simdist.run`. It has failed if a rank failed, a judge found something, a fault never struck, or
    `check` reports a problem. Results come in the order of variants and seeds, whatever `workers` are.

    Args:
        fn: the program of a rank, as `simdist.run` takes it.
        world_size: number of ranks.
        seeds: the seeds, or how many, from 0 on.
        variants: for each a mapping with settings of `simdist.run` in place of the common ones, such as
            `dict(faults=[Crash(rank=1, nth=3)])`. Each is run with every seed, or with the `seed` that it has.
        check: called with the result of each run, in the process that did it; it returns a problem, or None. It may
            assert instead.
        until_failure: stop at the first run that fails.
        workers: in how many processes runs are done. None: one for each core, or only this one if there are fewer than
            40 runs, or no other process can import `fn`. With 1, all are done in this process, and a run that kills its
            process ends this one. With more, this process does none, and a run of which processes die is a failure as
            any other. They import `fn` by its name, and start with the script's main module: a script needs `if
            __name__ == "__main__":`. Or the address of a Dask scheduler, such as "tcp://10.0.0.1:8786".
        progress: called with how many runs are done, how many there are, and how many causes of failures were seen.
        settings: further ones of `simdist.run`, common to all runs.

    Returns:
        The result of each run; `raise_for_failure` raises if one failed.

    Raises:
        ArgumentError: arguments are invalid; one line for each problem.
        InterruptedRunsError: Ctrl-C ended it. Its `report` has the findings until then.

    Example:
        >>> import simdist, torch, torch.distributed as dist
        >>> def total():
        ...     dist.init_process_group("gloo")
        ...     mine = torch.rand(2)
        ...     dist.all_reduce(mine)
        ...     return mine.sum().item() > 0
        >>> report = simdist.run_many(total, world_size=2, seeds=5)
        >>> report.ok, [run.outcome for run in report.results][:1]
        (True, ['ranks 0, 1 returned True'])
    """
    problems = list(_name_problems(settings, own=("seeds", "variants", "check", "until_failure", "workers")))
    if "seed" in settings:
        problems.append("seed: there are many; say seeds=[...], or how many")
    if workers is not None:
        problems += workers_problems(workers)
    if check is not None and not callable(check):
        problems.append(f"check: expected a function, found {PYTHON.found(check)}")
    chosen, more = _seeds(seeds, variants)
    problems += more
    common = {"fn": fn, "world_size": world_size}
    common |= {name: value for name, value in settings.items() if name in SETTINGS and name not in ("seed", "disk")}
    changed, more = _checked(common, () if variants is None else variants)
    problems += more
    if problems:
        raise ArgumentError("simdist.run_many", problems)
    programs = _Functions(fn, {"world_size": world_size, **settings}, changed, check)
    tasks = [
        _Task(number, seed, variant)
        for number, (variant, seed) in enumerate(
            (variant, seed)
            for variant in (range(len(changed)) if changed else (-1,))
            for seed in ((changed[variant]["seed"],) if variant >= 0 and "seed" in changed[variant] else chosen)
        )
    ]
    return _done(programs, tasks, workers, until_failure=until_failure, progress=progress)


def run_plan_many(
    plan: Plan,
    seeds: Iterable[int],
    *,
    workers: int | str | None = None,
    until_failure: bool = False,
    progress: Progress | None = None,
) -> ManyReport:
    """As `run_many`, for a scenario, judged by its own expectations.

    Raises:
        ScenarioError: the workload can't be imported.
    """
    tasks = [_Task(number, seed) for number, seed in enumerate(seeds)]
    return _done(_Plans(PlanProgram(plan)), tasks, workers, until_failure=until_failure, progress=progress)


@dataclass(frozen=True, slots=True)
class _Task:
    """A run: its seed, and the number of its variant (-1: none)."""

    number: int
    seed: int
    variant: int = -1


class _Programs(Protocol):
    """The program or programs that are run."""

    def run(self, task: _Task) -> Ran:
        """Do one run."""
        ...

    def replay(self, task: _Task) -> str:
        """Return the call or command that repeats the run."""
        ...

    def token(self, task: _Task) -> str:
        """Return the word for `simdist replay`, or ""."""
        ...

    def warm(self) -> None:
        """Import the modules that runs need."""


@dataclass(frozen=True, slots=True)
class _Functions:
    """A function, with the settings that its runs share and those of each variant."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]
    variants: Sequence[Mapping[str, Any]]
    check: Callable[[RunResult], str | None] | None

    def _program(self, task: _Task) -> FunctionProgram:
        own = self.variants[task.variant] if task.variant >= 0 else {}
        settings: Any = {**self.settings, **own, "seed": task.seed}
        return FunctionProgram(
            caller="simdist.run_many", function=self.function, settings=settings, oracle=self._problems
        )

    def _problems(self, seen: Seen) -> Iterator[tuple[str, str]]:
        yield from watched(seen)
        if said := said_by(self.check, "simdist.run_many", seen.result):
            yield "check", said

    def run(self, task: _Task) -> Ran:
        return self._program(task).run(_AS_IT_IS)

    def replay(self, task: _Task) -> str:
        return self._program(task).replay(_AS_IT_IS)

    def token(self, task: _Task) -> str:
        return ""

    def warm(self) -> None:
        """Does nothing: the function's module is imported."""


@dataclass(frozen=True, slots=True)
class _Plans:
    """A scenario."""

    program: PlanProgram

    def _plan(self, task: _Task) -> Plan:
        return replace(self.program.plan, seed=task.seed)

    def run(self, task: _Task) -> Ran:
        def ran(progress: object) -> tuple[RunResult, Problems]:
            report = run_scenario(self._plan(task))
            return report.result, tuple((each.name, each.evidence) for each in report.verdicts if not each.ok)

        return ran_within(None, ran)

    def replay(self, task: _Task) -> str:
        return self._plan(task).replay

    def token(self, task: _Task) -> str:
        plan = self._plan(task)
        return token_of(plan, Attempt(policy="", faults=plan.faults))

    def warm(self) -> None:
        self.program.warm()


_AS_IT_IS = Attempt(policy="")  # the program itself, with nothing changed


class _Running(Worker[_Task, SingleRun]):
    """Does runs in a process."""

    def __init__(self, programs: _Programs) -> None:
        self._programs = programs

    def do(self, task: _Task) -> SingleRun:
        """Do one run."""
        began_s = time.process_time()
        ran = self._programs.run(task)
        spent_s = time.process_time() - began_s
        one = replace(self._named(task), cause=cause_of(ran), cpu_s=spent_s)
        if ran.result is None:
            return one
        result = ran.result
        return replace(
            one,
            outcome=outcome_of(result),
            digest=result.digest,
            virtual_time_ns=result.virtual_time_ns,
            restarts=result.restarts,
        )

    def killed(self, number: int, task: _Task, how: str) -> SingleRun:
        """Return a failed run for one that killed its process."""
        return replace(self._named(task), cause=Cause("died", f"its process {how}", f"died | {how}"))

    def _named(self, task: _Task) -> SingleRun:
        return SingleRun(
            number=task.number,
            seed=task.seed,
            variant=task.variant,
            replay=self._programs.replay(task),
            token=self._programs.token(task),
        )


@contextmanager
def _elsewhere(programs: _Programs) -> Iterator[_Running]:
    with no_logs_of_ranks():
        yield _Running(programs)


def _done(
    programs: _Programs,
    tasks: Sequence[_Task],
    workers: int | str | None,
    *,
    until_failure: bool,
    progress: Progress | None,
) -> ManyReport:
    start = partial(_elsewhere, programs)
    if workers is None:
        workers = cores() if len(tasks) >= FEW and _can_be_sent(start) else 1
    results: list[SingleRun] = []
    causes: dict[str, None] = {}
    with (
        kept_when_interrupted(lambda: ManyReport(results=tuple(results), interrupted=True) if results else None),
        no_logs_of_ranks(),
        Workers(_Running(programs), start, workers, warm=programs.warm, apart=workers != 1) as pool,
    ):
        for _, one in pool.run(tasks, len(tasks)):
            results.append(one)
            if one.cause is not None:
                causes[one.cause.key] = None
            if progress is not None:
                progress(len(results), len(tasks), len(causes))
            if until_failure and not one.ok:
                break
        return ManyReport(results=tuple(results), died=pool.died)


def _can_be_sent(start: object) -> bool:
    """True if another process can get the program: all that it refers to is in modules that have files."""
    try:
        pickle.dumps(start)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    main = sys.modules["__main__"]
    function = getattr(getattr(start, "args", (None,))[0], "function", None)
    return getattr(function, "__module__", "") != "__main__" or hasattr(main, "__file__")


def _name_problems(settings: Mapping[str, Any], own: Sequence[str] = ()) -> Iterator[str]:
    """Yield problems with the names of settings; `own` are further arguments, which a misspelt name may mean."""
    yield from (f"{name}: {why}" for name, why in _NOT_TAKEN.items() if name in settings)
    others = {name: value for name, value in settings.items() if name not in _NOT_TAKEN}
    yield from setting_problems(others, what="run", taken=("progress",), own=own)


def _seeds(seeds: Any, variants: Any) -> tuple[list[int], list[str]]:
    """Return the seeds, and their problems."""
    if seeds is None:
        own = all("seed" in each for each in items_of(variants) or () if isinstance(each, Mapping))
        if variants is None or not own:
            return [0], [] if variants is not None else ["seeds: say which, or how many"]
        return [], []
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return list(range(seeds)), [] if seeds > 0 else [f"seeds: {seeds} is no count; 1 is the least"]
    items = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes | Mapping) else None
    if items is None:
        return [], [f"seeds: expected a count, or seeds, found {PYTHON.found(seeds)}"]
    if not items:
        return [], ["seeds: there are none"]
    problems = []
    for at, seed in enumerate(items):
        try:
            _SEED.check(seed)
        except Unfit as unfit:
            problems += [f"seeds[{at}]: {finding.text}" for finding in unfit.findings]
    return items, problems


def _checked(common: Mapping[str, object], variants: object) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the variants, and problems with them, with the common settings, and with both together."""
    good, problems = misfits(common)
    items = items_of(variants)
    mappings = [each for each in items or () if isinstance(each, Mapping)]
    if items is None or len(mappings) < len(items):
        return [], [
            *problems,
            f"variants: expected mappings with settings of simdist.run, found {PYTHON.found(variants)}",
        ]
    checked: list[tuple[str, CheckedSettings]] = []
    for at, variant in enumerate(mappings):
        where = f"variants[{at}]"
        names = list(_name_problems(variant))
        own, wrong = misfits({name: value for name, value in variant.items() if name in SETTINGS})
        problems += [f"{where}.{line}" for line in (*names, *wrong)]
        checked.append((f"{where}: ", own))
    if not problems:
        for where, own in checked or [("", {})]:
            problems += [f"{where}{line}" for line in _misfit({**good, **own})]
    return mappings, problems


def _misfit(settings: CheckedSettings) -> Sequence[str]:
    """Return why settings do not fit together that are valid by themselves."""
    try:
        check_fitting("simdist.run_many", settings)
    except (ArgumentError, FaultError) as error:
        return error.problems
    except TopologyError as error:
        return [f"cluster: {error}"]
    return []
