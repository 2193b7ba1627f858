"""Runs of a plan with crashes from outside the plan, for sweeps."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

from simdist.faults import Fault, fields_of, file_key
from simdist.result import RunResult
from simdist.scenario._oracles import Seen, judge
from simdist.scenario._plan import Plan, Verdict
from simdist.scenario._runner import Progress, simulate

__all__ = ["fault_text", "simulated", "undisturbed"]


def undisturbed(plan: Plan) -> Plan:
    """Return the plan without its own faults, and without expectations of them."""
    expect = replace(plan.expect, restarts=None, same_as_without_faults=plan.expect.same_as_without_faults)
    return replace(plan, faults=(), expect=expect)


def simulated(
    plan: Plan,
    baseline: RunResult | None,
    single: RunResult | None = None,
    *,
    folder: str | None = None,
    progress: Progress | None = None,
) -> tuple[RunResult, tuple[Verdict, ...]]:
    """Run the plan once, and judge it, compared with `baseline` where an expectation needs a fault-free run.

    `single` is the run of one rank. The run's temporary folder is made in `folder`, if given; `progress` is that of
    `simdist.run`.

    Call it inside `importable`.

    Raises:
        ScenarioError: the workload can't be imported.
    """
    with tempfile.TemporaryDirectory(prefix="simdist-", dir=folder, ignore_cleanup_errors=True) as tmp:
        result = simulate(plan, tmp, progress=progress, folder=folder)
        return result, judge(Seen(plan, result, baseline, tmp, single=single))


def fault_text(fault: Fault) -> str:
    """Return the fault as a file writes it, as one inline table of TOML."""
    parts = [f'kind = "{fault.kind}"']
    for name, each in fields_of(type(fault)).items():
        value = getattr(fault, name)
        if value is not None and value != each.default:
            parts.append(f"{file_key(name)} = {_toml(value, is_duration=name.endswith('_ns'))}")
    return f"{{{', '.join(parts)}}}"


def _toml(value: Any, *, is_duration: bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if is_duration:
        return f'"{value // 1_000_000_000}s"' if value % 1_000_000_000 == 0 else f'"{value}ns"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(each, is_duration=False) for each in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
