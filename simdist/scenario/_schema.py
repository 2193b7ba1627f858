"""The keys of a scenario file, section by section, as pydantic models; and pydantic's errors in plain words.

Settings that the Python API has too (a world's, the cluster's) are not repeated here: their sections are made from the
same specs. Faults are in `_fault_kinds`.

Each section is checked on its own, so that a slip in one does not hide the problems of the others. The models hold the
file's values; `_loader` turns them into the plan.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, create_model

from simdist.result import Status
from simdist.settings import DISK, SETTINGS, START_TIME
from simdist.values import (
    FILE,
    Maybe,
    Number,
    OneOf,
    Spec,
    Text,
    Truth,
    Unfit,
    brief,
    found,
    guess_or_list,
    parse_duration,
    place,
)

__all__ = ["DISK_SECTION", "ENV", "HEADER", "RANK_RANGES", "SECTIONS", "Expect", "Path", "Problem", "Target", "check"]
__all__ += ["check_spec", "cluster_keys", "cluster_section", "model_spec", "section", "topology_spec"]

Path = tuple[str | int, ...]
SECTIONS = ("workload", "cluster", "device", "nccl", "jitter", "disk", "env", "faults", "expect")
RANK_RANGES = re.compile(r"\d{1,9}(-\d{1,9})?(\s*,\s*\d{1,9}(-\d{1,9})?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file, and its place."""

    path: Path
    text: str

    @property
    def where(self) -> str:
        """The path as users write it: `faults[1].rank`."""
        return place(self.path)

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def _keys_or_all(value: object) -> object:
    if isinstance(value, bool):
        return [] if value else None
    if isinstance(value, list) and value and all(isinstance(key, str) for key in value):
        return value
    raise ValueError(f"expected true, false or a list of keys, found {found(value)}")


def _one_for_all(value: object) -> object:
    """Let a single outcome stand for every rank."""
    return {"": value} if isinstance(value, str) else value


def _exception_for_all(value: object) -> object:
    """Let a single exception stand for every rank; a table by rank has keys such as "0" and "1-3"."""
    if not isinstance(value, dict) or (value and all(RANK_RANGES.fullmatch(key) for key in value)):
        return value
    return {"": value}


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[int, BeforeValidator(parse_duration)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Keys = Annotated[list[str] | None, BeforeValidator(_keys_or_all)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    # Keys that are no fields of the model but valid in the same table: the sections next to the header's keys.
    beside: ClassVar[tuple[str, ...]] = ()


def section(name: str, keys: Mapping[str, tuple[Spec, object]], beside: tuple[str, ...] = ()) -> type[_Section]:
    """Return a section with these keys, each with its spec and default; `...` for none."""
    fields: dict[str, Any] = {
        key: (Annotated[Any, PlainValidator(functools.partial(spec.check, dialect=FILE))], default)
        for key, (spec, default) in keys.items()
    }
    model: type[_Section] = create_model(name, __base__=_Section, **fields)
    model.beside = beside
    return model


# The keys before the first section.
HEADER = section(
    "Header",
    {
        "title": (Text(title=True), ""),
        "world_size": (SETTINGS["world_size"], ...),
        "backend": (SETTINGS["backend"], "gloo"),
        "seed": (SETTINGS["seed"], 0),
        "max_restarts": (SETTINGS["max_restarts"], 0),
        "min_hosts": (SETTINGS["min_hosts"], None),
        "policy": (SETTINGS["policy"], "fifo"),
        "start_time": (SETTINGS["start_time"], START_TIME),
        "isolate": (SETTINGS["isolate"], ()),
        "share": (SETTINGS["share"], ()),
        "program_time": (SETTINGS["program_ns"], 0),
        "stall_s": (SETTINGS["stall_s"], 30.0),
        "strict": (SETTINGS["strict"], None),
        "judges": (SETTINGS["judges"], False),
        "values": (SETTINGS["values"], "all"),
        "portable": (Truth(), False),
        "time_scale": (Number(above=0), 1.0),
    },
    beside=SECTIONS,
)


class Target(_Section):
    """[workload]"""

    target: str
    folder: str = ""  # the folder of its module, relative to the file
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


@functools.cache
def topology_spec() -> Spec:
    """Return the spec of `cluster.topology`."""
    from simdist.cluster import TOPOLOGIES  # networkx comes with it

    return OneOf(tuple(TOPOLOGIES))


@functools.cache
def cluster_keys(topology: str) -> Mapping[str, str]:
    """Return the keys of [cluster] for a topology, each with its setting: the same name with its unit."""
    from simdist.cluster import TOPOLOGIES  # networkx comes with it

    settings = TOPOLOGIES[topology].settings
    return {
        name.removesuffix("_ns").removesuffix("_bytes_per_s").removesuffix("_bytes"): name
        for name in settings
        # Reductions belong to a calibration; models are sections of their own.
        if not name.startswith("reduction_") and name not in ("device_model", "nccl", "jitter")
    }


@functools.cache
def cluster_section(topology: str) -> type[_Section]:
    """Return the section [cluster] for a topology."""
    from simdist.cluster import TOPOLOGIES  # networkx comes with it

    settings = TOPOLOGIES[topology].settings
    keys: dict[str, tuple[Spec, object]] = {key: (settings[name], None) for key, name in cluster_keys(topology).items()}
    own: dict[str, tuple[Spec, object]] = {"topology": (topology_spec(), "uniform")}
    # A file written by `simdist calibrate`.
    return section("Cluster", own | keys | {"calibration": (Maybe(Text()), None)})


_DISK_DEFAULTS = {"profile": "ext4", "latency": 0, "local": False, "local_profile": "ext4", "names_late": 0}
DISK_SECTION = section("Disk", {key: (spec, _DISK_DEFAULTS.get(key)) for key, spec in DISK.items()})


@functools.cache
def model_spec(setting: str) -> Spec:
    """Return the spec of [device], [nccl] or [jitter]."""
    from simdist.cluster import BUILD  # networkx comes with it

    return BUILD[setting]


# [env]
ENV: Spec = SETTINGS["env"]


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
    max_steps_lost: Count | None = None
    equal_states: bool = False
    same_states_as_without_faults: bool = False
    same_as_one_rank: Keys = None
    samples_once: Count | None = None
    max_files: Count | None = None
    no_late_writes: bool = False
    findings: Annotated[list[str], BeforeValidator(_one_or_more)] = []


_M = TypeVar("_M", bound=BaseModel)


def check_spec(spec: Spec, raw: object, path: Path, problems: list[Problem]) -> Any:
    """Return `raw` as `spec` converts it; or None, and its problems are appended to `problems` as seen from `path`."""
    try:
        return spec.check(raw, FILE)
    except Unfit as unfit:
        problems += [Problem((*path, *finding.path), finding.text) for finding in unfit.findings]
        return None


def check(model: type[_M], raw: object, path: Path, problems: list[Problem]) -> _M | None:
    """Return `raw` as a `model`; or None, and its problems are appended to `problems` as seen from `path`."""
    if not isinstance(raw, dict):
        problems.append(Problem(path, f"expected a table, found {found(raw)}"))
        return None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for finding in error.errors(include_url=False):
            reason = finding.get("ctx", {}).get("error")
            place = (*path, *finding["loc"])
            if isinstance(reason, Unfit):
                problems += [Problem((*place, *each.path), each.text) for each in reason.findings]
            else:
                problems.append(Problem(place, _in_words(model, dict(finding))))
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
        return f"unknown {brief(value)}{guess_or_list(value, known)}"
    if kind == "literal_error":
        return f"expected {context['expected']}, found {found(value)}"
    if kind == "greater_than":
        return f"{brief(value)} is too small; it must be greater than {context['gt']:g}"
    if kind == "greater_than_equal":
        return f"{brief(value)} is too small; the least is {context['ge']}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED:
        return f"expected {_WANTED[kind]}, found {found(value)}"
    return str(finding["msg"])
