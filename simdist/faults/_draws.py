"""The numbers that a fault draws: those of its own stream, the same in a simulation and on real processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simdist.faults._fault import Fault

__all__ = ["draws_for", "uniform_ns"]


def draws_for(
    fault: Fault, earlier: Sequence[Fault], *, seed: int, life: int, rank: int | None = None
) -> Callable[[], float]:
    """Numbers from 0 to 1, the same for the same fault in a life of a run with `seed`.

    With `rank` they are for what this rank does: each rank has a stream of its own.

    The stream has the fault's own words as its name, so that other faults come and go without a change to it; of equal
    faults each has its own, by how many are `earlier` in the run. It is made when the first number is asked for.
    """
    made: list[Any] = []

    def draw() -> float:
        if not made:
            from simdist.kernel import stream

            words = repr(fault)
            alike = sum(repr(each) == words for each in earlier)
            whose = "" if rank is None else f", rank {rank}"
            made.append(stream(seed, f"{words}, {alike} like it before, life {life}{whose}"))
        return float(made[0].random())

    return draw


def uniform_ns(most_ns: int, draw: Callable[[], float]) -> int:
    """A time from 0 to `most_ns`, all alike, by the next number that is drawn."""
    return int(draw() * (most_ns + 1))
