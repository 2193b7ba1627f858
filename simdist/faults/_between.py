"""Link faults between two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import RANK, TRUTH
from simdist.faults._link_fault import LinkEffect, LinkFault, lay_between
from simdist.faults._stage import Stage

__all__ = ["FaultBetween"]


class FaultBetween(LinkFault):
    """A fault of the messages from `src` to `dst`, and with `both_ways` of those from `dst` to `src`, too."""

    src: Annotated[int, RANK]
    dst: Annotated[int, RANK]
    both_ways: Annotated[bool, TRUTH] = True

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every link fault, and a rank's link to itself."""
        yield from super().problems(world)
        if world.fine("src", "dst") and self.src == self.dst:
            yield "", "a rank has no link to itself"

    def effect(self) -> LinkEffect:
        """Return its effect on the messages."""
        raise NotImplementedError(f"{type(self).__name__} has no effect(self)")

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Return the effect if it acts in this direction."""
        return self.effect() if (src, dst) in self.ways() else None

    def ways(self) -> list[tuple[int, int]]:
        """Return the directions in which it acts, as (source, target)."""
        return [(self.src, self.dst)] + ([(self.dst, self.src)] if self.both_ways else [])

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Lay it on its one or two directions."""
        for src, dst in self.ways():
            lay_between(stage, src, dst, self.effect(), start_ns, until_ns)
