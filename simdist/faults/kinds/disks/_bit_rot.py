"""`BitRot`: a bit on the disk is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._rank_fault import RankFault
from simdist.faults._stage import StruckRank
from simdist.values import Maybe, Text, Whole

__all__ = ["BitRot"]


class BitRot(RankFault):
    """A bit of a file flips on the disk when the trigger comes. Nothing reports it: a reader gets another byte.

    `path` is the file, relative to its disk, and may be a pattern ("*.pt"), which means the last file by name that the
    rank can see. `byte` counts from the beginning; None is the middle. The program gets a FileNotFoundError if there is
    no such file, and a ValueError if the file has no such byte.
    """

    path: Annotated[str, Text(title=True)]
    byte: Annotated[int | None, Maybe(Whole(least=0))] = None
    bit: Annotated[int, Whole(least=0, most=7)] = 0

    @property
    def needs_disk(self) -> bool:
        """True."""
        return True

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and a trigger by time."""
        yield from super().problems(world)
        if world.fine("at_ns", "at_step", "at_point", "op", "nth", "after") and self.trigger.is_timed:
            yield "at_ns" if self.at_ns is not None else "after", "needs an operation, a step or a point of its rank"

    def strike(self, rank: StruckRank) -> None:
        """Flip the bit."""
        from simdist.files import flip_bit  # torch comes with it

        flip_bit(self.path, self.byte, self.bit)

    def begins(self) -> str:
        """Describe the flipped bit."""
        place = "in the middle" if self.byte is None else f"of byte {self.byte}"
        return f"bit {self.bit} {place} of {self.path} flips on the disk"
