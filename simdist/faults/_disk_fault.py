"""Faults of a simulated disk that last for a while."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._fault import Machine
from simdist.faults._fields import RANK
from simdist.faults._lasting import LastingFault
from simdist.values import Maybe

__all__ = ["DiskFault"]


class DiskFault(LastingFault):
    """The disk misbehaves towards `rank`, or towards all (None), while it lasts."""

    rank: Annotated[int | None, Maybe(RANK)] = None

    @property
    def needs_disk(self) -> bool:
        """True."""
        return True

    def strikes(self, rank: int, now_ns: int, start_ns: int, until_ns: int | None) -> bool:
        """True if the fault strikes what a rank does to the disk at this moment."""
        return self.rank in (None, rank) and start_ns <= now_ns and (until_ns is None or now_ns < until_ns)

    def real_obstacle(self, machine: Machine) -> str:
        """Real disks stay as they are."""
        return "it is a fault of a simulated disk"
