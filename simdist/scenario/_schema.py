"""The keys of a scenario file, section by section, as pydantic models; and pydantic's findings in plain words.

Each section is checked on its own, so that a slip in one does not hide the problems of the others. The models hold
what the file says; `_loader` turns them into the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simdist import faults
from simdist.result import Status
from simdist.scenario._text import found, guess_or_list
from simdist.scenario._units import parse_bandwidth, parse_duration

__all__ = ["FAULTS", "SECTIONS", "Cluster", "Env", "Expect", "Header", "Path", "Problem", "Target", "check"]

Path = tuple[str | int, ...]
SECTIONS = ("workload", "cluster", "env", "faults", "expect")
RANK_RANGES = re.compile(r"\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, and where."""

    path: Path
    text: str

    @property
    def where(self) -> str:
        """The path as the file's readers write it: `faults[1].rank`."""
        parts = [f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in self.path if part != ""]
        return "".join(parts).removeprefix(".")

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def _keys_or_all(value: object) -> object:
    if isinstance(value, bool):
        return [] if value else None
    if isinstance(value, list) and value and all(isinstance(key, str) for key in value):
        return value
    raise ValueError(f"expected true, false or a list of keys, found {found(value)}")


def _life(value: object) -> object:
    if value == "every":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f'expected a life counted from 0, or "every", found {found(value)}')


def _one_for_all(value: object) -> object:
    """A single outcome stands for every rank."""
    return {"": value} if isinstance(value, str) else value


def _exception_for_all(value: object) -> object:
    """A single exception stands for every rank; a table by rank has keys such as "0" and "1-3"."""
    if not isinstance(value, dict) or (value and all(RANK_RANGES.fullmatch(key) for key in value)):
        return value
    return {"": value}


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[int, BeforeValidator(parse_duration)]
Bandwidth = Annotated[int, BeforeValidator(parse_bandwidth)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Keys = Annotated[list[str] | None, BeforeValidator(_keys_or_all)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    # Keys that are no fields of the model and still good at this place: the sections beside the header's keys.
    beside: ClassVar[tuple[str, ...]] = ()


class Header(_Section):
    """The keys before the first section."""

    beside = SECTIONS

    title: str = ""
    world_size: Positive
    backend: Literal["gloo", "sim"] = "gloo"
    seed: Count = 0
    max_restarts: Count = 0
    policy: Literal["fifo", "random"] = "fifo"
    strict: bool | None = None
    portable: bool = False
    time_scale: Annotated[float, Field(gt=0, strict=False)] = 1.0


class Target(_Section):
    """[workload]"""

    target: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Cluster(_Section):
    """[cluster]"""

    hosts: Positive = 1
    latency: Duration | None = None
    bandwidth: Bandwidth | None = None
    local_latency: Duration | None = None
    local_bandwidth: Bandwidth | None = None
    calibration: str | None = None  # a file that `simdist calibrate` has written


class Env(BaseModel):
    """[env]"""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, str]


class _RankFault(_Section):
    rank: int
    at: Duration | None = None
    step: int | None = None
    op: str | None = None
    nth: int | None = None
    when: Literal["before", "during", "after"] = "before"
    life: Annotated[int | None, BeforeValidator(_life)] = 0

    def trigger(self) -> dict[str, Any]:
        """The arguments that every fault that strikes a rank shares."""
        names = ("rank", "op", "nth", "when", "life")
        return {name: getattr(self, name) for name in names} | {"at_ns": self.at, "at_step": self.step}


class _Crash(_RankFault):
    signal: str = "SIGKILL"
    exit_code: int | None = None

    def build(self) -> faults.Fault:
        return faults.Crash(**self.trigger(), signal=self.signal, exit_code=self.exit_code)


class _Hang(_RankFault):
    duration: Duration | None = None

    def build(self) -> faults.Fault:
        return faults.Hang(**self.trigger(), duration_ns=self.duration)


class _Raise(_RankFault):
    error: str = "RuntimeError"
    message: str = "injected by a fault"

    def build(self) -> faults.Fault:
        return faults.Raise(**self.trigger(), error=self.error, message=self.message)


class _SlowRank(_Section):
    rank: int
    delay: Duration
    start: Duration = 0
    until: Duration | None = None

    def build(self) -> faults.Fault:
        return faults.SlowRank(rank=self.rank, delay_ns=self.delay, start_ns=self.start, until_ns=self.until)


class _LinkDelay(_Section):
    src: int
    dst: int
    delay: Duration
    start: Duration = 0
    until: Duration | None = None
    both_ways: bool = True

    def build(self) -> faults.Fault:
        return faults.LinkDelay(
            src=self.src,
            dst=self.dst,
            delay_ns=self.delay,
            start_ns=self.start,
            until_ns=self.until,
            both_ways=self.both_ways,
        )


class _Partition(_Section):
    groups: list[list[int]]
    start: Duration = 0
    until: Duration | None = None  # it heals then; without it, never

    def build(self) -> faults.Fault:
        groups = tuple(tuple(group) for group in self.groups)
        return faults.Partition(groups=groups, start_ns=self.start, until_ns=self.until)


class _Hold(_Section):
    src: int
    dst: int
    start: Duration = 0
    until: Duration | None = None  # released then; without it, never
    both_ways: bool = False

    def build(self) -> faults.Fault:
        return faults.Hold(
            src=self.src, dst=self.dst, start_ns=self.start, until_ns=self.until, both_ways=self.both_ways
        )


class _StoreDelay(_Section):
    delay: Duration
    start: Duration = 0
    until: Duration | None = None
    rank: int | None = None  # without it, every rank

    def build(self) -> faults.Fault:
        return faults.StoreDelay(delay_ns=self.delay, start_ns=self.start, until_ns=self.until, rank=self.rank)


class _StoreLost(_Section):
    at: Duration

    def build(self) -> faults.Fault:
        return faults.StoreLost(at_ns=self.at)


_AnyFault = _Crash | _Hang | _Raise | _SlowRank | _LinkDelay | _Partition | _Hold | _StoreDelay | _StoreLost

FAULTS: Mapping[str, type[_AnyFault]] = {
    "crash": _Crash,
    "hang": _Hang,
    "raise": _Raise,
    "slow_rank": _SlowRank,
    "link_delay": _LinkDelay,
    "partition": _Partition,
    "hold": _Hold,
    "store_delay": _StoreDelay,
    "store_lost": _StoreLost,
}


class _Exception(_Section):
    type: str | None = None
    message: str | None = None
    pattern: str | None = None


class Expect(_Section):
    """[expect]"""

    outcomes: Annotated[dict[str, Status] | None, BeforeValidator(_one_for_all)] = None
    exception: Annotated[dict[str, _Exception], BeforeValidator(_exception_for_all)] = {}
    restarts: Count | None = None
    equal_values: Keys = None
    same_as_without_faults: Keys = None
    min_values: dict[str, float] = {}
    max_values: dict[str, float] = {}
    checkpoint: Annotated[list[str], BeforeValidator(_one_or_more)] = []
    deadlock: bool = False
    faults_strike: bool = True
    min_virtual_time: Duration | None = None
    max_virtual_time: Duration | None = None
    max_events: Positive | None = None


_M = TypeVar("_M", bound=BaseModel)


def check(model: type[_M], raw: object, path: Path, problems: list[Problem]) -> _M | None:
    """`raw` as a `model`; or None, and what is wrong with it is appended to `problems` as seen from `path`."""
    if not isinstance(raw, dict):
        problems.append(Problem(path, f"expected a table, found {found(raw)}"))
        return None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        findings = error.errors(include_url=False)
        problems += [Problem((*path, *finding["loc"]), _in_words(model, dict(finding))) for finding in findings]
        return None


_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


def _in_words(model: type[BaseModel], finding: dict[str, Any]) -> str:
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind == "missing":
        return "missing; it has no default"
    if kind == "extra_forbidden":
        at_top = len(finding["loc"]) == 1
        known = [*(model if at_top else _Exception).model_fields, *getattr(model, "beside", ())]
        return f"unknown key{guess_or_list(str(finding['loc'][-1]), known)}"
    if kind == "literal_error" and isinstance(value, str):
        known = re.findall(r"'([^']*)'", context["expected"])
        return f"unknown {value!r}{guess_or_list(value, known)}"
    if kind == "literal_error":
        return f"expected {context['expected']}, found {found(value)}"
    if kind == "greater_than":
        return f"{value} is too small; it must be greater than {context['gt']:g}"
    if kind == "greater_than_equal":
        return f"{value} is too small; the least is {context['ge']}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED:
        return f"expected {_WANTED[kind]}, found {found(value)}"
    return str(finding["msg"])


def _quoted(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_]+", part) else f'"{part}"'
