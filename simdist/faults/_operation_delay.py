"""Faults that make the operations of a rank start late."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._fault import Machine
from simdist.faults._fields import RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage

__all__ = ["OperationDelay"]


class OperationDelay(LastingFault):
    """Operations of `rank` start late while it lasts. A subclass says how late, in `lateness_ns`.

    Example:
        >>> class Overheating(OperationDelay):
        ...     def lateness_ns(self, lasted_ns):
        ...         return lasted_ns // 100
        >>> Overheating(rank=1).lateness_ns(5_000_000)
        50000
    """

    rank: Annotated[int, RANK]

    def lateness_ns(self, lasted_ns: int) -> int:
        """How late an operation starts that is called when the fault has lasted for so long."""
        raise NotImplementedError(f"{type(self).__name__} has no lateness_ns(self, lasted_ns)")

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Ask before each operation."""

        def lateness_ns(rank: int, now_ns: int) -> int:
            if rank != self.rank or now_ns < start_ns or (until_ns is not None and now_ns >= until_ns):
                return 0
            return self.lateness_ns(now_ns - start_ns)

        stage.delay_operations(lateness_ns)

    def real_obstacle(self, machine: Machine) -> str:
        """Only that nobody tells a real rank when a fault elsewhere has struck."""
        return "" if self.after is None else "on real processes only faults of ranks come after others"

    def ends(self) -> str:
        """The rank is itself again."""
        return f"rank {self.rank} is in time again"
