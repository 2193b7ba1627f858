"""Which parts of a scenario a machine can inject; the rest is reported with the reason, and never counts as passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simdist.faults import Machine
from simdist.hardware.links._namespaces import why_no_namespaces
from simdist.scenario import Plan

__all__ = ["NotReplayed", "not_replayed"]


@dataclass(frozen=True, slots=True)
class NotReplayed:
    """Something of the scenario that no real run has: `what`, such as "faults[1] (Partition)", and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def not_replayed(plan: Plan, backend: str, nodes: int = 1) -> tuple[NotReplayed, ...]:
    """What of `plan` can't be replayed on `backend` on this machine, or on so many like it."""
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
    """A fault that comes after one that is left out never strikes."""
    names = {f"faults[{i}] ({type(fault).__name__})": fault.name for i, fault in enumerate(plan.faults)}
    missing = after is not None and any(names.get(each.what) == after for each in left_out)
    return f"it comes after {after!r}, which is not replayed" if missing else ""
