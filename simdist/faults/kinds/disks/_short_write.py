"""`ShortWrite`: a write writes fewer bytes than it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION
from simdist.faults._in_place import problems_in_place
from simdist.faults._rank_fault import RankFault
from simdist.values import Whole

__all__ = ["ShortWrite"]


class ShortWrite(RankFault):
    """A write writes only `bytes_written` of its bytes, and reports it; Python's buffered files then write the rest."""

    op: Annotated[str | None, OPERATION] = "write"
    bytes_written: Annotated[int, Whole(least=0)] = 1

    @property
    def part_bytes(self) -> int:
        """The bytes that are written."""
        return self.bytes_written

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and another effect than a write."""
        yield from super().problems(world)
        yield from problems_in_place(self, world, ("write",), "writes no bytes; the only op is 'write'")

    def begins(self) -> str:
        """Describe the part that is written."""
        return f"a write of rank {self.rank} ends after {self.bytes_written} bytes"
