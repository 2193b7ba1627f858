"""`simdist.explore`: the search over schedules, of a function and of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from simdist.errors import ArgumentError
from simdist.programs import FunctionProgram, PlanProgram, count_problems, setting_problems, workers_problems
from simdist.scenario import Plan
from simdist.searches._report import ExploreReport
from simdist.searches._search import Progress, Search

if TYPE_CHECKING:
    from simdist.judges import Judge
    from simdist.settings import ExploreSettings

__all__ = ["explore", "explore_plan", "function_program", "judged"]

_TAKEN = ("policy", "progress", "echo", "replay", "record_results")
"""Settings of `simdist.run` that each search has for itself."""


def explore(
    fn: Callable[..., object],
    *,
    world_size: int,
    runs: int = 200,
    schedules: int = 0,
    systematic: bool = False,
    judges: bool | Sequence[str | Judge] = True,
    one_outcome: bool = False,
    until_found: bool = False,
    inevitable: bool = True,
    workers: int | str = 1,
    progress: Progress | None = None,
    **settings: Unpack[ExploreSettings],
) -> ExploreReport:
    """Run `fn` under many schedules, and report those under which it fails.

    The first run is the usual one. The others draw which task goes first at each instant, how long requests to stores
    and messages to any receiver take, and half of the time a rank that gets no processor for 1 ms to 2 min of virtual
    time. Every other schedule has priorities that change at a few random moments (probabilistic concurrency testing).
    The seed of the program's own generators stays the same.

    A `systematic` search draws nothing. It tries every order in which ranks and threads that can run at one instant may
    take turns, at requests to stores, messages and locks, until none is left or `runs` are over. Of equal orders it
    tries one (dynamic partial-order reduction); `coverage` of the report says whether it tried all. Requests to stores,
    and messages to any receiver, take no time in it.

    Args:
        fn: the program of a rank, as `simdist.run` takes it.
        world_size: number of ranks.
        runs: how many schedules are tried.
        schedules: the seed of the schedules; another one gives other schedules.
        systematic: try all orders that can differ, one after the other, and draw none.
        judges: as in `simdist.run`; all of them by default.
        one_outcome: what ranks return must not depend on the schedule: a second outcome is a failure.
        until_found: stop at the first failure.
        inevitable: look for the moment at which the first schedule of each cause became inevitable. It takes up to a
            hundred runs more.
        workers: in how many processes schedules are tried, this one and others, if there are 40 or more. The findings
            do not depend on it. The others import `fn` by its name, and start with the script's main module: a script
            needs `if __name__ == "__main__":`. Or the address of a Dask scheduler, such as "tcp://10.0.0.1:8786", whose
            workers try what this process does not. A systematic search has one process.
        progress: called with how many runs are done, how many there are, and how many causes were found.
        settings: further ones of `simdist.run`.

    Returns:
        Every outcome with its count, and every cause of a failure with the schedule that shows it. `raise_for_failure`
        raises if there is one.

    Raises:
        ArgumentError: arguments are invalid.
        InterruptedRunsError: Ctrl-C ended it. Its `report` has the findings until then.

    Example:
        >>> import simdist, torch.distributed as dist
        >>> def first_come():
        ...     dist.init_process_group("gloo")
        ...     store = dist.TCPStore("127.0.0.1", 29600, 2, is_master=dist.get_rank() == 0)
        ...     place = store.add("here", 1)
        ...     dist.barrier()  # rank 0 has the store: it has to stay until all have asked
        ...     return place
        >>> report = simdist.explore(first_come, world_size=2, runs=20)
        >>> report.ok, len(report.outcomes)
        (True, 2)
    """
    problems = [*count_problems(runs=runs), *workers_problems(workers)]
    if systematic and schedules:
        problems.append("schedules: a systematic search draws none")
    if systematic and workers != 1:
        problems.append("workers: a systematic search tries one order after the other")
    if workers != 1 and settings.get("disk") is not None:
        problems.append("workers: they would all use the folder of one disk; a scenario has a disk for each run")
    given = {"world_size": world_size, "judges": judges, **settings}
    program = function_program("simdist.explore", fn, given, problems)
    search = Search(program, schedules, one_outcome=one_outcome, until_found=until_found, inevitable=inevitable)
    return search.run_systematically(runs, progress) if systematic else search.run(runs, workers, progress)


def explore_plan(
    plan: Plan,
    *,
    runs: int = 200,
    schedules: int = 0,
    systematic: bool = False,
    one_outcome: bool = False,
    until_found: bool = False,
    inevitable: bool = True,
    workers: int | str = 1,
    progress: Progress | None = None,
) -> ExploreReport:
    """As `explore`, for a scenario, judged by its own expectations, with all judges unless it names some.

    Raises:
        ScenarioError: the workload can't be imported.
    """
    program = PlanProgram(judged(plan))
    search = Search(program, schedules, one_outcome=one_outcome, until_found=until_found, inevitable=inevitable)
    return search.run_systematically(runs, progress) if systematic else search.run(runs, workers, progress)


def function_program(
    caller: str,
    fn: Callable[..., object],
    settings: Mapping[str, Any],
    problems: Iterable[str],
    taken: Sequence[str] = (),
) -> FunctionProgram:
    """Return a user's function as a program. `taken` are further settings of the search, `problems` those found before.

    Raises:
        ArgumentError: names every problem.
    """
    found = [*setting_problems(settings, what="search", taken=(*_TAKEN, *taken)), *problems]
    if found:
        raise ArgumentError(caller, found)
    checked: Any = settings
    return FunctionProgram(caller=caller, function=fn, settings=checked)


def judged(plan: Plan) -> Plan:
    """Return the plan with all judges, unless it names some."""
    if plan.judges:
        return plan
    return replace(plan, judges=True, overrides=(*plan.overrides, "judges=true"))
