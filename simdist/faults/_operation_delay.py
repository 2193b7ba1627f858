"""Faults that make the operations of a rank start late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from simdist.faults._fault import Machine
from simdist.faults._fields import RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage

__all__ = ["OperationDelay"]


class OperationDelay(LastingFault):
    """Operations of `rank` start late while it lasts. A subclass says how late, in `lateness_ns`.

    `drawn_ns` returns the random part of the lateness. It is called at each operation of the rank, also while the fault
    is off: so the n-th operation of a life draws the same numbers in a simulation and on a real process.

    Example:
        >>> class Overheating(OperationDelay):
        ...     def lateness_ns(self, lasted_ns):
        ...         return lasted_ns // 100
        >>> Overheating(rank=1).lateness_ns(5_000_000)
        50000
    """

    rank: Annotated[int, RANK]

    def lateness_ns(self, lasted_ns: int) -> int:
        """Return how late an operation starts that is called this long after the start of the fault."""
        raise NotImplementedError(f"{type(self).__name__} has no lateness_ns(self, lasted_ns)")

    def drawn_ns(self, draw: Callable[[], float]) -> int:
        """Return how much later an operation starts by chance; `draw` gives numbers from 0 to 1, from the run's seed.

        An override calls `draw` equally often for each operation.
        """
        return 0

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Ask before each operation."""

        def draw() -> float:
            return stage.draw(self.rank)

        def lateness_ns(rank: int, now_ns: int) -> int:
            if rank != self.rank:
                return 0
            drawn_ns = self.drawn_ns(draw)
            if now_ns < start_ns or (until_ns is not None and now_ns >= until_ns):
                return 0
            return self.lateness_ns(now_ns - start_ns) + drawn_ns

        stage.delay_operations(lateness_ns)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses `after`: a real rank does not learn when a fault elsewhere has struck."""
        return "" if self.after is None else "on real processes only faults of ranks come after others"

    def ends(self) -> str:
        """The text when the rank is in time again."""
        return f"rank {self.rank} is in time again"
