"""`LostSync`: a disk confirms a sync that it has not done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION
from simdist.faults._in_place import problems_in_place
from simdist.faults._rank_fault import RankFault

__all__ = ["LostSync"]

_SYNCS = ("fsync", "fdatasync", "fsync_dir", "sync")


class LostSync(RankFault):
    """A sync returns, but has made nothing durable: the disk confirms a flush that it has not done.

    The program sees no difference until its host loses power. `op` is "fsync", "fdatasync", "fsync_dir" or "sync"; with
    `every=1` the disk never keeps what it confirms.
    """

    drops: ClassVar[bool] = True
    may_keep_out: ClassVar[bool] = False

    op: Annotated[str | None, OPERATION] = "fsync"

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and an operation that is no sync."""
        yield from super().problems(world)
        why = "makes nothing durable; op is one of " + ", ".join(map(repr, _SYNCS))
        yield from problems_in_place(self, world, _SYNCS, why)

    def begins(self) -> str:
        """Describe the lost operation."""
        return f"the disk confirms {self.op} to rank {self.rank} without doing it"
