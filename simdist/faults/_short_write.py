"""`ShortWrite`: a write writes less than it was given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION
from simdist.faults._rank_fault import RankFault
from simdist.values import Whole

__all__ = ["ShortWrite"]


class ShortWrite(RankFault):
    """A write writes only `bytes_written` of its bytes, and says so; Python's buffered files write the rest then."""

    op: Annotated[str | None, OPERATION] = "write"
    bytes_written: Annotated[int, Whole(least=0)] = 1

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Those of every rank fault, and another effect than a write."""
        yield from super().problems(world)
        if world.fine("op") and self.op != "write":
            yield "op", f"{self.op!r} writes no bytes; the only op is 'write'"

    def exception(self) -> Exception:
        """What the disk takes for it; no program gets it."""
        from simdist.files import WrittenInPartError  # torch comes with it

        return WrittenInPartError(self.bytes_written)

    def begins(self) -> str:
        """How much is written."""
        return f"a write of rank {self.rank} ends after {self.bytes_written} bytes"
