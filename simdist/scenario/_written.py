"""A scenario as a file: another one with its overrides and faults written into it."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from simdist.faults import Fault
from simdist.scenario._plan import Plan
from simdist.scenario._reader import apply_overrides, read
from simdist.scenario._struck import fault_text

__all__ = ["scenario_text"]


def scenario_text(plan: Plan, faults: Sequence[Fault], folder: Path, *, comment: str = "") -> str:
    """Return the plan with these faults in place of its own, as TOML for a file in `folder`, below `comment`."""
    table = read(plan.source, []) or {}
    apply_overrides(table, plan.overrides, [])
    table["seed"] = plan.seed
    table["max_restarts"] = plan.max_restarts
    workload = table.get("workload")
    table["workload"] = {"target": workload} if isinstance(workload, str) else dict(workload or {})
    table["workload"]["folder"] = os.path.relpath(plan.workload.folder, folder)
    calibration = table.get("cluster", {}).get("calibration")
    if calibration is not None:
        table["cluster"]["calibration"] = os.path.relpath(Path(plan.source).resolve().parent / calibration, folder)
    if plan.min_hosts is not None:
        table["min_hosts"] = plan.min_hosts
    expected = table.get("expect", {})
    for name in (
        "restarts",
        "same_as_without_faults",
        "same_states_as_without_faults",
        "same_as_one_rank",
        "samples_once",
    ):
        if not getattr(plan.expect, name) and getattr(plan.expect, name) != ():
            expected.pop(name, None)
    table.pop("faults", None)
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    lines.append(f"faults = [{', '.join(map(fault_text, faults))}]")
    for name, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{_key(name)}]", *_pairs(value)]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, object]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{_key(name)} = {_value(value)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        inside = ", ".join(_pairs(value))
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return repr(value)  # TOML has Python's numbers, "inf" and "nan" among them
