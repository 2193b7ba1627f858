"""`SlowRank`: a straggler."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._fields import DELAY
from simdist.faults._operation_delay import OperationDelay
from simdist.faults._words import milliseconds

__all__ = ["SlowRank"]


class SlowRank(OperationDelay):
    """A straggler: every operation of `rank` starts `delay_ns` late, from `start_ns` to `until_ns` (None: for ever)."""

    delay_ns: Annotated[int, DELAY]

    def lateness_ns(self, lasted_ns: int) -> int:
        """Always the same."""
        return self.delay_ns

    def begins(self) -> str:
        """How late."""
        return f"rank {self.rank} starts each operation {milliseconds(self.delay_ns)} late"
