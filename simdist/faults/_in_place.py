"""Problems of faults that act on the effect itself: they leave it out, change it, or do it in part."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._rank_fault import RankFault

__all__ = ["problems_in_place"]


def problems_in_place(fault: RankFault, world: Surroundings, takes: Collection[str], why: str) -> Iterator[Problem]:
    """Yield an operation that the fault can't act on, as `why` says, and a side of it on which it is too late."""
    if world.fine("op") and fault.op not in takes:
        yield "op", f"{fault.op!r} {why}"
    if world.fine("when") and fault.when != "before":
        yield "when", f"{fault.when!r} is too late; it is done to the operation itself"
