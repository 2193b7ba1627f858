"""Faults that end a process, perhaps in the middle of a write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._rank_fault import RankFault
from simdist.values import Maybe, Whole

__all__ = ["DeathFault"]


class DeathFault(RankFault):
    """A process ends. With `bytes_written` it ends in a write, after this number of its bytes."""

    bytes_written: Annotated[int | None, Maybe(Whole(least=0))] = None

    @property
    def part_bytes(self) -> int | None:
        """The number of bytes of the struck write that are written; None: half of them."""
        return self.bytes_written

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and a count of bytes outside a write."""
        yield from super().problems(world)
        in_write = self.op == "write" and self.when == "during"
        if world.fine("bytes_written", "op", "when") and self.bytes_written is not None and not in_write:
            yield "bytes_written", 'only a write has bytes, and only when = "during" is in the middle of them'
