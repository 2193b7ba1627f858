"""`StoreDelay`: requests to the launcher's store take longer."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._fields import DELAY, RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.faults._store_fault import StoreFault
from simdist.faults._words import milliseconds
from simdist.values import Maybe

__all__ = ["StoreDelay"]


class StoreDelay(StoreFault, LastingFault):
    """Every request of `rank` (None: of any rank) to the launcher's store takes `delay_ns` longer.

    The launcher's store is the one that torchrun serves, at MASTER_ADDR and MASTER_PORT; a store that a rank serves
    itself is not affected.
    """

    delay_ns: Annotated[int, DELAY]
    rank: Annotated[int | None, Maybe(RANK)] = None

    def request_delay_ns(self, rank: int, now_ns: int) -> int:
        """The delay, while it lasts."""
        return self.delay_ns if self.rank in (None, rank) and self.is_on(now_ns) else 0

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Ask before each request."""
        origin_ns = stage.origin_ns
        stage.delay_requests(
            lambda rank, now_ns: self.request_delay_ns(rank, now_ns - origin_ns) if now_ns >= start_ns else 0
        )

    def begins(self) -> str:
        """Whose requests, and by how much."""
        return f"requests of {self._whose()} to the launcher's store take {milliseconds(self.delay_ns)} longer"

    def ends(self) -> str:
        """As before."""
        return f"requests of {self._whose()} to the launcher's store are no longer delayed"

    def _whose(self) -> str:
        return "all ranks" if self.rank is None else f"rank {self.rank}"
