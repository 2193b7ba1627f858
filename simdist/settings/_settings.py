"""What the settings of a world have to be, once for `simdist.run`, `spawn`, the marker, the fixture and files."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from simdist.errors import ArgumentError, FaultError, TopologyError
from simdist.faults import problems_of
from simdist.kernel import POLICIES, policy_problem
from simdist.storage import PROFILES, Mount
from simdist.values import (
    PYTHON,
    WORLD_SIZE,
    Bandwidth,
    Dialect,
    Duration,
    Environment,
    Finding,
    Function,
    Instance,
    ListOf,
    Maybe,
    Moment,
    Number,
    OneOf,
    Spec,
    Text,
    Truth,
    Unfit,
    Whole,
    brief,
    findings_of,
    guess_or_list,
    items_of,
    place,
)

if TYPE_CHECKING:
    from simdist.cluster import Cluster
    from simdist.faults import Fault
    from simdist.judges import Judge
    from simdist.settings._keywords import CheckedSettings

__all__ = ["ANYTHING", "BACKENDS", "DISK", "SETTINGS", "START_TIME", "VALUES", "RunSettings", "check_fitting"]
__all__ += ["check_settings", "has_devices", "misfits", "unmoved_problems"]

BACKENDS = ("gloo", "nccl", "sim")
VALUES = ("all", "shapes")
START_TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_MOST_SEED = 2**64 - 1  # torch.manual_seed takes no more


def _cluster() -> type:
    from simdist.cluster import Cluster  # networkx comes with it

    return Cluster


@dataclass(frozen=True, slots=True)
class _Anything(Spec):
    """Any argument of a rank's function."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> object:
        return value


@dataclass(frozen=True, slots=True)
class _Arguments(Spec):
    """The positional arguments of a function, kept as they are."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...]:
        return ListOf(ANYTHING).check(value, dialect)


@dataclass(frozen=True, slots=True)
class _Keywords(Spec):
    """The keyword arguments of a function."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> dict[str, object]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise Unfit([Finding((), f"expected a mapping with names as keys, found {dialect.found(value)}")])
        return dict(value)


@dataclass(frozen=True, slots=True)
class _Faults(Spec):
    """Some faults; `problems_of` finds what is wrong with each."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...]:
        items = items_of(value)
        if items is None:
            text = f"expected a sequence of faults from simdist.faults, found {dialect.found(value)}"
            raise Unfit([Finding((), text)])
        return items


@dataclass(frozen=True, slots=True)
class _Isolate(Spec):
    """True or False, or names of modules; `check` returns False or a tuple."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...] | bool:
        if isinstance(value, bool):
            return () if value else False
        if items_of(value) is None:
            expected = f"expected {dialect.truth}, or {dialect.list} of names of modules"
            raise Unfit([Finding((), f"{expected}, found {dialect.found(value)}")])
        return ListOf(_MODULE).check(value, dialect)


@dataclass(frozen=True, slots=True)
class _Module(Spec):
    """The name of a top-level module or package, which stands for all submodules too."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> str:
        name = Text().check(value, dialect)
        if "." in name and all(part.isidentifier() for part in name.split(".")):
            top = name.partition(".")[0]
            raise Unfit(
                [Finding((), f"{brief(name)} is a submodule; only whole packages can be isolated: write {top!r}")]
            )
        if not name.isidentifier():
            raise Unfit([Finding((), f"{brief(name)} is not the name of a module")])
        return name


@dataclass(frozen=True, slots=True)
class _Policy(OneOf):
    """The name of a scheduling policy; those with parameters are not listed."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> str:
        if isinstance(value, str) and value not in self.known and not policy_problem(value):
            return value
        return OneOf.check(self, value, dialect)


@dataclass(frozen=True, slots=True)
class _Judges(Spec):
    """True or False, or judges and names of judges; `check` returns True, False or a tuple."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> tuple[object, ...] | bool:
        if isinstance(value, bool):
            return value
        from simdist.judges import judges_problem  # not needed by worlds without judges

        items = items_of(value)
        if items is None:
            expected = f"expected {dialect.truth}, or {dialect.list} of judges"
            raise Unfit([Finding((), f"{expected}, found {dialect.found(value)}")])
        problem = judges_problem(items)
        if problem:
            raise Unfit([Finding((), problem)])
        return items


@dataclass(frozen=True, slots=True)
class _Disk(Spec):
    """A mount, or a folder, which stands for a mount with every default."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> Mount:
        if isinstance(value, str | os.PathLike):
            value = Mount(folder=value)
        if not isinstance(value, Mount):
            text = f"expected a folder, or a Mount from simdist.storage, found {dialect.found(value)}"
            raise Unfit([Finding((), text)])
        findings = [
            Finding((name, *finding.path), finding.text)
            for name, spec in _MOUNT.items()
            for finding in findings_of(spec, getattr(value, name), dialect)
        ]
        if not isinstance(value.folder, str | os.PathLike) or not Path(value.folder).is_dir():
            findings.append(Finding(("folder",), f"{brief(str(value.folder))} is not a directory"))
        if value.local is not None and not (isinstance(value.local, str | os.PathLike) and Path(value.local).is_dir()):
            findings.append(Finding(("local",), f"{brief(str(value.local))} is not a directory"))
        if findings:
            raise Unfit(findings)
        return value


ANYTHING = _Anything()
DISK: Mapping[str, Spec] = {
    "profile": OneOf(tuple(PROFILES)),
    "latency": Duration(),
    "bandwidth": Maybe(Bandwidth()),
    "local": Truth(),
    "local_profile": OneOf(tuple(PROFILES)),
    "names_late": Duration(),
}
_MOUNT: Mapping[str, Spec] = {
    "profile": DISK["profile"],
    "latency_ns": DISK["latency"],
    "bandwidth": Maybe(Number(above=0)),
    "local_profile": DISK["local_profile"],
    "names_late_ns": DISK["names_late"],
}
_MODULE = _Module()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of a run: their names, types and defaults. `simdist.run` documents what each means.

    A world's `WorldSpec` inherits them. `run`, `spawn`, the marker and scenario files spell theirs out, for `help()`
    and editors; `tests/settings/test_settings.py` compares them with this list. `SETTINGS` has the values they take.
    """

    world_size: int
    backend: str = "gloo"
    seed: int = 0
    cluster: Cluster | None = None
    faults: Sequence[Fault] = ()
    max_restarts: int = 0
    min_hosts: int | None = None
    env: Mapping[str, str] | None = None
    argv: Sequence[str] | None = None
    policy: str = "fifo"
    start_time: datetime.datetime = START_TIME
    isolate: bool | Sequence[str] = False
    share: Sequence[str] = ()
    program_ns: int = 0
    disk: Mount | str | os.PathLike[str] | None = None
    strict: bool | None = None  # None: only for the ideal backend
    judges: bool | Sequence[str | Judge] = False
    record_results: bool = False
    values: str = "all"
    stall_s: float = 30.0
    echo: Callable[[int, int, str, str], None] | None = None
    progress: Callable[[int, int], None] | None = None


SETTINGS: Mapping[str, Spec] = {
    "fn": Function(),
    "args": _Arguments(),
    "kwargs": Maybe(_Keywords()),
    "world_size": WORLD_SIZE,
    "backend": OneOf(BACKENDS),
    "seed": Whole(least=0, most=_MOST_SEED),
    "cluster": Maybe(Instance(_cluster, "a Cluster from simdist.cluster")),
    "faults": _Faults(),
    "max_restarts": Whole(least=0),
    "min_hosts": Maybe(Whole(least=1)),
    "env": Maybe(Environment()),
    "argv": Maybe(ListOf(Text(), of="texts")),
    "policy": _Policy(POLICIES, ("pct",)),
    "start_time": Moment(),
    "isolate": _Isolate(),
    "share": ListOf(_MODULE, of="names of modules"),
    "program_ns": Duration(),
    "strict": Maybe(Truth()),
    "judges": _Judges(),
    "record_results": Truth(),
    "values": OneOf(VALUES),
    "stall_s": Number(above=0),
    "echo": Maybe(Function()),
    "progress": Maybe(Function()),
    "disk": Maybe(_Disk()),
    "replay": Maybe(Text()),
    "nprocs": WORLD_SIZE,
    "join": Truth(),
}


def misfits(given: Mapping[str, object], known: Mapping[str, Spec] = SETTINGS) -> tuple[CheckedSettings, list[str]]:
    """The valid ones of the `given` arguments, as plain data, and a line for everything that is wrong."""
    good: dict[str, object] = {}
    lines = []
    for name, value in given.items():
        if name not in known:
            lines.append(f"{name}: unknown argument{guess_or_list(name, known)}")
            continue
        try:
            good[name] = known[name].check(value)
        except Unfit as unfit:
            lines += [f"{place((name, *finding.path))}: {finding.text}" for finding in unfit.findings]
    return cast("CheckedSettings", good), lines


def has_devices(settings: CheckedSettings) -> bool:
    """True if a world with these settings has virtual devices."""
    cluster = settings.get("cluster")
    return settings.get("backend") == "nccl" or (cluster is not None and bool(cluster.devices_per_host))


def unmoved_problems(good: CheckedSettings) -> Iterator[tuple[str, str]]:
    """Settings that need payloads, in a world that does not move them: the name of each, and why."""
    if good.get("values") != "shapes":
        return
    if good.get("record_results"):
        yield "record_results", 'operations leave nothing to compare with values="shapes"'
    judges = good.get("judges")
    if judges and not isinstance(judges, bool):
        from simdist.judges import judges_of  # not needed by worlds without judges

        for judge in judges_of(judges):
            if judge.compares_values:
                yield "judges", f'{judge.name!r} compares values, and values="shapes" moves none; leave one of them out'


def check_settings(call: str, given: Mapping[str, object], known: Mapping[str, Spec] = SETTINGS) -> CheckedSettings:
    """The arguments of `call` as plain data, each checked alone and all together.

    Raises:
        FaultError: only faults are wrong.
        TopologyError: only the cluster does not fit the world.
        ArgumentError: anything else is; it reports faults and cluster too.
    """
    good, lines = misfits(given, known)
    check_fitting(call, good, lines)
    return good


def check_fitting(call: str, good: CheckedSettings, lines: Iterable[str] = ()) -> None:
    """Check that settings, each valid alone, fit together; `lines` are the problems found already.

    Raises:
        FaultError, TopologyError, ArgumentError: as `check_settings`.
    """
    lines = list(lines)
    size = good.get("world_size", good.get("nprocs"))
    lives = 0 if "nprocs" in good else good.get("max_restarts")  # spawned ranks are never restarted
    faulty = problems_of(
        good.get("faults", ()),
        WORLD_SIZE.most if size is None else size,
        max_restarts=lives,
        has_disk=good.get("disk") is not None,
        has_local_disks=getattr(good.get("disk"), "local", None) is not None,
        has_devices=has_devices(good),
        moves_payloads=good.get("values") != "shapes",
    )
    lines += [f"{name}: {text}" for name, text in unmoved_problems(good)]
    cluster = good.get("cluster")
    hosts = 1 if cluster is None else len(cluster.hosts)
    if (good.get("min_hosts") or 0) > hosts:
        said = "1 host" if hosts == 1 else f"{hosts} hosts"
        lines.append(f"min_hosts: {good['min_hosts']} is more than the cluster's {said}")
    misplaced = []
    if cluster is not None and size is not None and cluster.world_size != size:
        misplaced.append(f"the cluster places {cluster.world_size} ranks, the world has {size}")
    if not (lines or misplaced) and faulty:
        raise FaultError(faulty)
    if not (lines or faulty) and misplaced:
        raise TopologyError(misplaced[0])
    if lines or faulty or misplaced:
        raise ArgumentError(call, [*lines, *faulty, *(f"cluster: {line}" for line in misplaced)])
