"""What a test's markers and the command line ask for, checked."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from simdist.cluster import Cluster
    from simdist.faults import Fault

__all__ = [
    "Settings",
    "item_settings",
    "nanoseconds",
    "parametrize_seeds",
    "policy_for",
    "seed_of",
    "settings_from",
    "settings_of",
    "world_size_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keywords of the marker; see `simdist.testing.plugin`. `timeout` is in nanoseconds here."""

    world_size: int = 4
    backend: str = "gloo"
    seeds: tuple[int, ...] = (0,)
    faults: Sequence[Fault] | Callable[[int], Sequence[Fault]] = ()
    strict: bool | None = None
    policy: str | None = None
    init: bool | None = None  # None: for the body of a marked test, not for worlds of `sim`
    timeout: int | None = None
    max_restarts: int = 0
    cluster: Cluster | Callable[[int], Cluster] | None = None
    env: Mapping[str, str] | None = None
    stall_s: float = 30.0

    def faults_for(self, seed: int) -> tuple[Fault, ...]:
        """The faults of a run with `seed`."""
        return tuple(self.faults(seed) if callable(self.faults) else self.faults)

    def cluster_for(self, world_size: int) -> Cluster | None:
        """The cluster of a world of that size."""
        return self.cluster(world_size) if callable(self.cluster) else self.cluster


_KEYWORDS = tuple(field.name for field in fields(Settings))


def nanoseconds(value: object) -> int:
    """A duration as people write it ("2s", "30ms"), a count of nanoseconds, or a timedelta.

    Raises:
        ValueError: it is no duration.
    """
    if isinstance(value, datetime.timedelta):
        value = value // datetime.timedelta(microseconds=1) * 1000
    if isinstance(value, str):
        from simdist.scenario import parse_duration  # pydantic comes with it

        return parse_duration(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no duration; write '30s', '5ms', or a whole number of nanoseconds")
    return value


def settings_of(node: pytest.Item | pytest.Collector, parameters: Mapping[str, Any] | None = None) -> Settings:
    """What the markers at `node` say, the closest last; then the parametrized arguments that bear a keyword's name.

    Raises:
        CollectError: a keyword is unknown or its value makes no sense; every problem in one message.
    """
    given: dict[str, Any] = {}
    problems: list[str] = []
    for marker in reversed(list(node.iter_markers("simdist"))):
        if len(marker.args) > 1:
            problems.append(f"takes one argument without a keyword, world_size; found {list(marker.args)}")
        given |= {"world_size": marker.args[0]} if marker.args else {}
        given |= marker.kwargs
    for name, value in (parameters or {}).items():
        if name in _KEYWORDS and name != "seeds":
            given[name] = value
    checked = _checked(given, problems)
    if problems:
        raise pytest.Collector.CollectError(_told(f"{node.nodeid}: @pytest.mark.simdist", problems))
    return Settings(**checked)


def settings_from(defaults: Settings, keywords: Mapping[str, Any]) -> Settings:
    """`defaults` with some keywords given anew.

    Raises:
        SimdistError: a keyword is unknown or its value makes no sense.
    """
    from simdist.errors import SimdistError

    problems = ["seeds: a world has one seed; give seed, or seeds to the marker"] if "seeds" in keywords else []
    checked = _checked({name: value for name, value in keywords.items() if name != "seeds"}, problems)
    if problems:
        raise SimdistError(_told("a world", problems))
    return replace(defaults, **checked)


def _checked(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _KEYWORDS:
            guess = difflib.get_close_matches(name, _KEYWORDS, 1)
            hint = f"did you mean {guess[0]!r}?" if guess else f"known: {', '.join(_KEYWORDS)}"
            problems.append(f"{name}: unknown keyword; {hint}")
            continue
        try:
            checked[name] = _CHECKS.get(name, _anything)(value)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return checked


def _told(what: str, problems: Sequence[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{what} has {count}", *(f"  {problem}" for problem in problems)])


def parametrize_seeds(metafunc: pytest.Metafunc) -> None:
    """One test for each seed, if markers and command line ask for several."""
    definition: Any = metafunc.definition
    seeds = _seeds(definition)
    if len(seeds) > 1:
        if "simdist_seed" not in metafunc.fixturenames:
            metafunc.fixturenames.append("simdist_seed")
        metafunc.parametrize("simdist_seed", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def seed_of(item: Any) -> int:
    """The seed of one test."""
    parameters = getattr(item, "callspec", None)
    if parameters is not None and "simdist_seed" in parameters.params:
        return int(parameters.params["simdist_seed"])
    return _seeds(item)[0]


def policy_for(policy: str | None, seed: int) -> str:
    """The scheduling policy: as asked for, or by the seed."""
    return policy if policy is not None else "fifo" if seed == 0 else "random"


def world_size_of(item: Any) -> int:
    """The number of ranks of one test."""
    return item_settings(item).world_size


def item_settings(item: Any) -> Settings:
    """The settings of a test that is about to run."""
    callspec = getattr(item, "callspec", None)
    try:
        return settings_of(item, callspec.params if callspec is not None else None)
    except pytest.Collector.CollectError as error:
        pytest.fail(str(error), pytrace=False)


def _seeds(node: Any) -> tuple[int, ...]:
    option = node.config.option
    seeds = settings_of(node).seeds
    first = option.simdist_seed if option.simdist_seed is not None else seeds[0]
    if option.simdist_seeds is not None:
        return tuple(range(first, first + option.simdist_seeds))
    return seeds if option.simdist_seed is None else (first,)


# -- checks: the value as Settings wants it, or a ValueError ---------------------------------------------------------


def _anything(value: Any) -> Any:
    return value


def _at_least(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"expected a whole number, {least} or more; found {value!r}")
        return value

    return check


def _is_seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return tuple(range(value))
    seeds = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []
    if not seeds or any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
        raise ValueError(f"expected how many, 1 or more, or the seeds themselves; found {value!r}")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"a seed stands there twice: {value!r}")
    return tuple(seeds)


def _is_faults(value: Any) -> Any:
    from simdist.faults import Fault

    if callable(value):
        return value
    faults = list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(fault, Fault) for fault in faults):
        raise ValueError(f"expected faults from simdist.faults, or a function of the seed; found {value!r}")
    return tuple(faults)


def _one_of(*known: Any) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not any(value is each or (isinstance(value, str) and value == each) for each in known):
            raise ValueError(f"expected one of {', '.join(map(repr, known))}; found {value!r}")
        return value

    return check


def _is_timeout(value: Any) -> int | None:
    return None if value is None else nanoseconds(value)


def _is_env(value: Any) -> Any:
    if value is not None and not (
        isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
    ):
        raise ValueError(f"expected a mapping from text to text; found {value!r}")
    return value


def _is_stall(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"expected seconds of real time, more than 0; found {value!r}")
    return float(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "world_size": _at_least(1),
    "seeds": _is_seeds,
    "faults": _is_faults,
    "strict": _one_of(None, True, False),
    "policy": _one_of(None, "fifo", "random"),
    "init": _one_of(None, True, False),
    "timeout": _is_timeout,
    "max_restarts": _at_least(0),
    "env": _is_env,
    "stall_s": _is_stall,
}
