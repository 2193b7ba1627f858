"""Which parts of a scenario a machine can inject; the rest is told, with the reason, and never counts as passed."""

from __future__ import annotations

from dataclasses import dataclass

from simdist.faults import Fault, Hold, RankFault, SlowRank, StoreDelay, StoreLost
from simdist.hardware._namespaces import why_none
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
    for index, fault in enumerate(plan.faults):
        reason = _why_not(fault, plan, backend, nodes)
        if reason:
            found.append(NotReplayed(f"faults[{index}] ({type(fault).__name__})", reason))
    return tuple(found)


def _why_not(fault: Fault, plan: Plan, backend: str, nodes: int) -> str:
    if isinstance(fault, RankFault | SlowRank):
        return ""
    if isinstance(fault, StoreDelay | StoreLost):
        # See simdist.hardware._agent.
        return "with restarts rank 0 serves the store itself, and no launcher's" if plan.max_restarts else ""
    if backend != "gloo":
        return f"link faults need ranks that talk through the network, and those of {backend} on one machine do not"
    if nodes > 1:
        return "link faults befall links between ranks on one machine"
    if isinstance(fault, Hold) and not fault.both_ways:
        return "Gloo sends nothing that the receiver has not asked for, so holding one direction stops the other, too"
    missing = why_none()
    return f"link faults need root, network namespaces and TUN devices: {missing}" if missing else ""
