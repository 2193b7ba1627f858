"""Finds the parts of a scenario that a machine can't inject; they are reported with the reason, and never pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simdist.faults import Machine
from simdist.hardware.links._namespaces import why_no_namespaces
from simdist.scenario import Plan

__all__ = ["NotReplayed", "not_replayed"]


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """A part of the scenario that no real run has: `what`, such as "faults[1] (Partition)", and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def not_replayed(plan: Plan, backend: str, nodes: int = 1) -> tuple[NotReplayed, ...]:
    """Return the parts of `plan` that can't be replayed on `backend` on this machine, or on `nodes` like it."""
    found = []
    if plan.backend not in (backend, "gloo", "nccl"):
        found.append(NotReplayed(f"backend {plan.backend!r}", "it exists only in simulation"))
    if plan.strict:
        found.append(NotReplayed("strict", "a real backend has no strict mode"))
    machine = Machine(backend, nodes, plan.max_restarts, why_no_namespaces)
    if plan.judges:
        found.append(NotReplayed("judges", "they look into simulated ranks"))
    for index, fault in enumerate(plan.faults):
        reason = fault.real_obstacle(machine) or _comes_after(fault.after, found, plan)
        if reason:
            found.append(NotReplayed(f"faults[{index}] ({type(fault).__name__})", reason))
    return tuple(found)


def _comes_after(after: str | None, left_out: Sequence[NotReplayed], plan: Plan) -> str:
    """Return why a fault can't strike that comes after one that is left out; "" if it can."""
    names = {f"faults[{i}] ({type(fault).__name__})": fault.name for i, fault in enumerate(plan.faults)}
    missing = after is not None and any(names.get(each.what) == after for each in left_out)
    return f"it comes after {after!r}, which is not replayed" if missing else ""
