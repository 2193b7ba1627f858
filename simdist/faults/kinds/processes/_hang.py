"""`Hang`: a process stops for a while, or for good."""

from __future__ import annotations

from typing import Annotated, ClassVar

from simdist.faults._fields import MOMENT
from simdist.faults._rank_fault import RankFault
from simdist.faults._stage import StruckRank
from simdist.faults._words import milliseconds

__all__ = ["Hang"]


class Hang(RankFault):
    """The rank stops, as under SIGSTOP: its connections stay open. It goes on after `duration_ns`, or never (None)."""

    may_keep_out: ClassVar[bool] = False  # it arrives later, or never, but is not gone

    duration_ns: Annotated[int | None, MOMENT] = None

    def strike(self, rank: StruckRank) -> None:
        """Stop the rank."""
        rank.stop(self.duration_ns)

    def begins(self) -> str:
        """Describe the hang."""
        until = "for good" if self.duration_ns is None else f"for {milliseconds(self.duration_ns)}"
        return f"rank {self.rank} hangs {until}"
