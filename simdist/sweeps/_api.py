"""`simdist.sweep`: the sweep of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from simdist.errors import ArgumentError
from simdist.faults import Fault
from simdist.programs import FunctionProgram, setting_problems
from simdist.result import RunResult
from simdist.scenario import Expectations
from simdist.storage import PROFILES, Mount
from simdist.sweeps._calls import call_of
from simdist.sweeps._crashes import CameBack, Crashes
from simdist.sweeps._points import Strike
from simdist.sweeps._report import SweepReport
from simdist.sweeps._sweep import Progress, swept
from simdist.sweeps._tries import Tries
from simdist.values import items_of, shown

if TYPE_CHECKING:
    from simdist.settings import SweepSettings

__all__ = ["sweep"]

_EXPECTED: Mapping[str, type] = {
    "equal_states": bool,
    "same_states_as_without_faults": bool,
    "samples_once": int,
    "max_files": int,
    "no_late_writes": bool,
}
_TAKEN = ("disk", "faults", "echo", "progress", "replay")
_GIVEN: Mapping[str, Any] = {
    "world_size": None,
    "args": ("{tmp}",),
    "kwargs": None,
    "profile": "ext4",
    "local_disks": False,
    "strikes": None,
    "outcomes": 4,
    "max_steps_lost": None,
    "expect": None,
    "check": None,
}
"""The arguments that a replay repeats, with their defaults."""


def sweep(
    fn: Callable[..., object],
    *,
    world_size: int,
    args: Sequence[object] = ("{tmp}",),
    kwargs: Mapping[str, object] | None = None,
    profile: str = "ext4",
    local_disks: bool = False,
    strikes: Sequence[Strike] | None = None,
    outcomes: int = 4,
    limit: int | None = None,
    second_crash: bool = False,
    merge: bool = True,
    only: Sequence[Fault] | None = None,
    keep: str | None = None,
    max_steps_lost: int | None = None,
    expect: Mapping[str, object] | None = None,
    check: Callable[[RunResult, str], str | None] | None = None,
    progress: Progress | None = None,
    **settings: Unpack[SweepSettings],
) -> SweepReport:
    """Crash `fn` at every moment of its run, start it again each time, and report where it does not recover.

    It runs once undisturbed, and then once for each crash, on a fresh disk each time. It has recovered if every rank
    returns the value that it returns undisturbed.

    Args:
        fn: the program of a rank, as `simdist.run` takes it.
        world_size: number of ranks.
        args: positional arguments of `fn`; "{tmp}" in a text stands for the folder of the disk.
        kwargs: keyword arguments of `fn`, likewise.
        profile: whose rules the disk keeps, one of `simdist.storage.PROFILES`.
        local_disks: each host has a disk of its own in addition; a rank finds its path in the environment, as
            SIMDIST_LOCAL_DISK.
        strikes: what is struck: a "rank" dies, its "host" loses power, "all" hosts do, or all are shut down and come
            back with each other's local disks ("swap"), or a host is lost for good and the launcher goes on with the
            others ("lost"; then nothing is compared with the undisturbed run), or a rank gets SIGTERM, as from a
            scheduler that takes its machine away ("sigterm": its handler runs, if it has one, and it dies without), or
            a rank hangs for two hours of virtual time, and the time-outs of the ranks that wait for it run out
            ("hang"). A rank whose handler exits with code 0 is done, as for torchrun, and is not started again. None:
            the first four, as far as they are possible.
        outcomes: how many states of the disk are tried for each loss of power of all hosts, the most suspicious first.
        limit: the largest number of crashes, spread evenly over the run; and of second ones.
        second_crash: crash it a second time, at each moment of the recovery.
        merge: end a run early if all ranks begin anew with the same files as in another run: it would go on as that one
            did. Possible only if nothing but files survives a crash, that is with `isolate=True`, without `share`, for
            a function that closes over nothing and has constant arguments, and without `check`, which looks at whole
            runs. Otherwise each run goes to its end.
        only: the faults of one of its crashes, as in a failure's `replay`: nothing else is tried.
        keep: a file for the results, from which a sweep that was interrupted goes on.
        max_steps_lost: how many steps (`simdist.step`) a restart may repeat.
        expect: what else has to hold, as in the section [expect] of a scenario: "equal_states" and
            "same_states_as_without_faults" (True) of what ranks report with `simdist.state`, "samples_once" (the size
            of the data set) of what they report with `simdist.samples`, "max_files" (a count), "no_late_writes" (True).
        check: called with the result of a run and the folder of its disk; it returns a problem, or None. It may assert
            instead.
        progress: called with how many crashes were tried, how many there are, and how many of them failed.
        settings: of `simdist.run`, such as `cluster`, `seed`, `max_restarts`.

    Returns:
        The result of every crash; `raise_for_failure` raises if the program did not recover from one.

    Raises:
        ArgumentError: arguments are invalid.
        InterruptedRunsError: Ctrl-C ended it. Its `report` has the findings until then.

    Example:
        >>> import os
        >>> import simdist
        >>> def save(folder):
        ...     with open(os.path.join(folder, "value"), "w") as file:
        ...         file.write("5")
        ...     with open(os.path.join(folder, "value")) as file:
        ...         return file.read()
        >>> report = simdist.sweep(save, world_size=1, strikes=["rank"])
        >>> report.ok, len(report.points), len(report.cases)
        (True, 2, 3)
    """
    given = {
        name: value for name, value in locals().items() if name in _GIVEN and repr(value) != repr(_GIVEN[name])
    } | settings
    wanted_strikes = () if strikes is None else items_of(strikes)
    tries = Tries(
        strikes=None if strikes is None else cast("tuple[Strike, ...]", wanted_strikes or ()),
        outcomes=outcomes,
        limit=limit,
        second_crash=second_crash,
        merge=merge,
        only=None if only is None else tuple(only),
    )
    problems = [*setting_problems(settings, what="sweep", taken=_TAKEN, own=inspect.signature(sweep).parameters)]
    if wanted_strikes is None:
        problems.append(f"strikes: expected a sequence of strikes, such as ['rank'], found {shown(strikes)}")
    problems += tries.problems()
    wanted: dict[str, Any] = dict(expect or {})
    problems += [f"expect: {name!r} is none of {', '.join(_EXPECTED)}" for name in wanted if name not in _EXPECTED]
    for name, value in wanted.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if name in _EXPECTED and not (is_count if _EXPECTED[name] is int else isinstance(value, bool)):
            said = "a count" if _EXPECTED[name] is int else "True or False"
            problems.append(f"expect: {name} is {said}, not {value!r}")
    if profile not in PROFILES:
        problems.append(f"profile: {profile!r} is none of {', '.join(PROFILES)}")
    if problems:
        raise ArgumentError("simdist.sweep", problems)
    given_to_run = {**settings, "world_size": world_size}
    whole: Any = {**given_to_run, "args": tuple(args), "kwargs": dict(kwargs or {})}
    name = getattr(fn, "__qualname__", repr(fn))
    crashes = Crashes(
        FunctionProgram(
            caller="simdist.sweep",
            function=fn,
            settings=whole,
            mount=Mount(folder="{tmp}", profile=profile, local="{local}" if local_disks else None),
            oracle=CameBack(max_steps_lost, Expectations(outcomes=(), **wanted) if wanted else None, check),
        ),
        steps_lost=max_steps_lost,
        merge=merge and check is None,
        call=call_of(fn, given),
        called=f"{name} {sorted(given_to_run.items(), key=str)} {args} {kwargs} {{'profile': {profile!r}}}",
    )
    return swept(crashes, tries, keep=keep, progress=progress)
