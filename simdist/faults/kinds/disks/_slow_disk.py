"""`SlowDisk`: effects on the disk take longer, or stall."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._disk_fault import DiskFault
from simdist.faults._fields import DELAY
from simdist.faults._stage import Stage
from simdist.faults._words import milliseconds

__all__ = ["SlowDisk"]


class SlowDisk(DiskFault):
    """Each effect on the disk takes `delay_ns` longer; with `stalls` it waits until the fault is over."""

    delay_ns: Annotated[int, DELAY]
    stalls: bool = False

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Delay each effect."""

        def lateness_ns(rank: int, now_ns: int) -> int:
            if not self.strikes(rank, now_ns, start_ns, until_ns):
                return 0
            stalled_ns = until_ns - now_ns if self.stalls and until_ns is not None else 0
            return stalled_ns + self.delay_ns

        stage.delay_effects(lateness_ns)

    def begins(self) -> str:
        """Describe the delay."""
        return (
            "the disk stalls" if self.stalls else f"each effect on the disk takes {milliseconds(self.delay_ns)} longer"
        )

    def ends(self) -> str:
        """Describe the end of the delay."""
        return "the disk is as fast as before"
