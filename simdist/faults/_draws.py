"""The numbers that a trigger's probability is weighed against: those of the fault's own stream, on both arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simdist.faults._fault import Fault

__all__ = ["draws_for"]


def draws_for(fault: Fault, earlier: Sequence[Fault], *, seed: int, life: int) -> Callable[[], float]:
    """Numbers from 0 to 1, the same for the same fault in a life of a run with `seed`.

    The stream has the fault's own words as its name, so that other faults come and go without a change to it; of equal
    faults each has its own, by how many are `earlier` in the run. It is made when the first number is asked for.
    """
    made: list[Any] = []

    def draw() -> float:
        if not made:
            from simdist.kernel import stream

            words = repr(fault)
            alike = sum(repr(each) == words for each in earlier)
            made.append(stream(seed, f"{words}, {alike} like it before, life {life}"))
        return float(made[0].random())

    return draw
