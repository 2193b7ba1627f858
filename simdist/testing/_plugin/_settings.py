"""The settings from a test's markers and the command line, checked."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from simdist.errors import ArgumentError
from simdist.faults import problems_of
from simdist.settings import SETTINGS, START_TIME, misfits
from simdist.values import (
    PYTHON,
    WORLD_SIZE,
    Dialect,
    Duration,
    Finding,
    ListOf,
    Maybe,
    Spec,
    Truth,
    Unfit,
    Whole,
    brief,
    parse_duration,
)

if TYPE_CHECKING:
    from simdist.cluster import Cluster
    from simdist.faults import Fault
    from simdist.judges import Judge

__all__ = ["MARKER", "Settings", "StartWords", "WorldWords", "item_settings", "nanoseconds", "parametrize_seeds"]
__all__ += ["policy_for", "seed_of", "settings_from", "settings_of", "world_size_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keywords of the marker; see `simdist.testing.plugin`. `timeout` is in nanoseconds here."""

    world_size: int = 4
    backend: str = "gloo"
    seeds: tuple[int, ...] = (0,)
    faults: Sequence[Fault] | Callable[[int], Sequence[Fault]] = ()
    strict: bool | None = None
    judges: bool | Sequence[str | Judge] = False
    values: str = "all"
    policy: str | None = None
    init: bool | None = None  # None: for the body of a marked test, but not for worlds of `sim`
    timeout: int | None = None
    max_restarts: int = 0
    cluster: Cluster | Callable[[int], Cluster] | None = None
    env: Mapping[str, str] | None = None
    start_time: datetime.datetime = START_TIME
    isolate: bool | Sequence[str] = False
    share: Sequence[str] = ()
    program_ns: int = 0
    stall_s: float = 30.0

    def faults_for(self, seed: int) -> tuple[Fault, ...]:
        """Return the faults of a run with `seed`.

        Raises:
            ArgumentError: the user's function of the seed returned something else.
        """
        __tracebackhide__ = True
        if not callable(self.faults):
            return tuple(self.faults)
        found, lines = misfits({"faults": self.faults(seed)})
        if lines:
            raise ArgumentError("the function for faults", lines)
        return tuple(found["faults"])

    def cluster_for(self, world_size: int) -> Cluster | None:
        """Return the cluster of a world of that size.

        Raises:
            ArgumentError: the user's function of the size returned something else.
        """
        __tracebackhide__ = True
        if not callable(self.cluster):
            return self.cluster
        found, lines = misfits({"cluster": self.cluster(world_size)})
        if lines:
            raise ArgumentError("the function for cluster", lines)
        cluster: Cluster | None = found["cluster"]
        return cluster


class StartWords(TypedDict, total=False):
    """The keywords of the marker that `sim.start` takes as they are."""

    world_size: int
    backend: str
    faults: Sequence[Fault] | Callable[[int], Sequence[Fault]]
    strict: bool | None
    judges: bool | Sequence[str | Judge]
    values: str
    policy: str | None
    init: bool | None
    timeout: str | int | datetime.timedelta | None
    max_restarts: int
    cluster: Cluster | Callable[[int], Cluster] | None
    env: Mapping[str, str] | None
    start_time: datetime.date
    isolate: bool | Sequence[str]
    share: Sequence[str]
    program_ns: int
    stall_s: float


class WorldWords(StartWords, total=False):
    """The keywords of `sim.run`."""

    seed: int | None
    argv: Sequence[str] | None


def nanoseconds(value: object, name: str = "time") -> int:
    """Return the nanoseconds of a duration as people write it ("2s", "30ms"), a count of nanoseconds, or a timedelta.

    Raises:
        ArgumentError: the value is no duration; `name` names the argument.
    """
    try:
        time_ns: int = _TIME.check(value)
    except Unfit as unfit:
        raise ArgumentError("sim", [f"{name}: {unfit}"]) from None
    return time_ns


def settings_of(node: pytest.Item | pytest.Collector, parameters: Mapping[str, object] | None = None) -> Settings:
    """Return the settings of the markers at `node`, the closest last, then of arguments named as a keyword.

    Raises:
        CollectError: a keyword is unknown or its value makes no sense; every problem in one message.
    """
    given: dict[str, object] = {}
    problems: list[str] = []
    for marker in reversed(list(node.iter_markers("simdist"))):
        if len(marker.args) > 1:
            problems.append(f"takes one argument without a keyword, world_size; found {brief(list(marker.args))}")
        given |= {"world_size": marker.args[0]} if marker.args else {}
        given |= marker.kwargs
    for name, value in (parameters or {}).items():
        if name in MARKER and name != "seeds":
            given[name] = value
    if node.config.option.simdist_judges:
        given.setdefault("judges", True)
    checked = _checked(given, problems)
    fixed = checked.get("faults", ())
    if not callable(fixed):
        defaults = Settings()  # for keywords that are not given; a wrong keyword excludes nothing
        size = checked.get("world_size", WORLD_SIZE.most if "world_size" in given else defaults.world_size)
        lives = checked.get("max_restarts", None if "max_restarts" in given else defaults.max_restarts)
        problems += problems_of(fixed, size, max_restarts=lives, has_disk=False)
    if problems:
        raise pytest.Collector.CollectError(_reported(f"{node.nodeid}: @pytest.mark.simdist", problems))
    return Settings(**checked)


def settings_from(defaults: Settings, keywords: Mapping[str, object], wrong: Sequence[str] = ()) -> Settings:
    """Return `defaults` with some keywords replaced; `wrong` has the problems found before.

    Raises:
        ArgumentError: a keyword is unknown or its value makes no sense; every problem at once.
    """
    problems = [*wrong]
    problems += ["seeds: a world has one seed; give seed, or seeds to the marker"] if "seeds" in keywords else []
    checked = _checked({name: value for name, value in keywords.items() if name != "seeds"}, problems)
    if problems:
        raise ArgumentError("a world", problems)
    return replace(defaults, **checked)


def _checked(given: Mapping[str, object], problems: list[str]) -> dict[str, Any]:
    checked, lines = misfits(given, MARKER)
    problems += [line.replace(": unknown argument;", ": unknown keyword;") for line in lines]
    return dict(checked)


def _reported(what: str, problems: Sequence[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{what} has {count}", *(f"  {problem}" for problem in problems)])


def parametrize_seeds(metafunc: pytest.Metafunc) -> None:
    """Make one test for each seed, if markers and command line request several."""
    seeds = _seeds(metafunc.definition)
    if len(seeds) > 1:
        if "simdist_seed" not in metafunc.fixturenames:
            metafunc.fixturenames.append("simdist_seed")
        metafunc.parametrize("simdist_seed", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def seed_of(item: pytest.Item) -> int:
    """Return the seed of one test."""
    parameters = getattr(item, "callspec", None)
    if parameters is not None and "simdist_seed" in parameters.params:
        return int(parameters.params["simdist_seed"])
    return _seeds(item)[0]


def policy_for(policy: str | None, seed: int) -> str:
    """Return the scheduling policy: the given one, or the seed's."""
    return policy if policy is not None else "fifo" if seed == 0 else "random"


def world_size_of(item: pytest.Item) -> int:
    """Return the number of ranks of one test."""
    return item_settings(item).world_size


def item_settings(item: pytest.Item) -> Settings:
    """Return the settings of a test that is about to run."""
    callspec = getattr(item, "callspec", None)
    try:
        return settings_of(item, callspec.params if callspec is not None else None)
    except pytest.Collector.CollectError as error:
        pytest.fail(str(error), pytrace=False)


def _seeds(node: pytest.Item) -> tuple[int, ...]:
    option = node.config.option
    seeds = settings_of(node).seeds
    first = option.simdist_seed if option.simdist_seed is not None else seeds[0]
    if option.simdist_seeds is not None:
        return tuple(range(first, first + option.simdist_seeds))
    return seeds if option.simdist_seed is None else (first,)


# -- the specs of the keywords: those of `simdist.run`'s arguments, and those that only the marker has --------------


@dataclass(frozen=True, slots=True)
class _Seeds(Spec):
    """A number of seeds, from 0 on, or the seeds themselves."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...]:
        expected = f"expected how many, 1 or more, or the seeds themselves; found {brief(value)}"
        count = Whole(least=1, most=1_000_000)
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            try:
                return tuple(range(count.check(value)))
            except Unfit:
                raise _unfit(expected) from None
        try:
            seeds = ListOf(SETTINGS["seed"]).check(value)
        except Unfit:
            raise _unfit(expected) from None
        if not seeds:
            raise _unfit(expected)
        if len(set(seeds)) < len(seeds):
            raise _unfit(f"a seed stands there twice: {brief(value)}")
        return seeds


@dataclass(frozen=True, slots=True)
class _OrFunction(Spec):
    """A value that `spec` accepts, or a function that returns one."""

    spec: Spec

    def check(self, value: object, dialect: Dialect = PYTHON) -> Any:
        return value if callable(value) and not isinstance(value, type) else self.spec.check(value, dialect)


@dataclass(frozen=True, slots=True)
class _Time(Spec):
    """A duration as people write it, a count of nanoseconds, or a timedelta."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> int:
        if isinstance(value, datetime.timedelta):
            value = value // datetime.timedelta(microseconds=1) * 1000
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            time_ns: int = Duration().check(value)
            return time_ns
        if not isinstance(value, str):
            raise _unfit(f"{brief(value)} is no duration; write '30s', '5ms', or a whole number of nanoseconds")
        try:
            return parse_duration(value)
        except ValueError as error:
            raise _unfit(str(error)) from None


def _unfit(text: str) -> Unfit:
    return Unfit([Finding((), text)])


_TIME = _Time()
MARKER: Mapping[str, Spec] = {
    "world_size": SETTINGS["world_size"],
    "backend": SETTINGS["backend"],
    "seeds": _Seeds(),
    "faults": _OrFunction(SETTINGS["faults"]),
    "strict": SETTINGS["strict"],
    "judges": SETTINGS["judges"],
    "values": SETTINGS["values"],
    "policy": Maybe(SETTINGS["policy"]),
    "init": Maybe(Truth()),
    "timeout": Maybe(_TIME),
    "max_restarts": SETTINGS["max_restarts"],
    "cluster": _OrFunction(SETTINGS["cluster"]),
    "env": SETTINGS["env"],
    "start_time": SETTINGS["start_time"],
    "program_ns": SETTINGS["program_ns"],
    "isolate": SETTINGS["isolate"],
    "share": SETTINGS["share"],
    "stall_s": SETTINGS["stall_s"],
}
