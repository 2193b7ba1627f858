"""Faults of the launcher's store.

In a simulation they are judges of `StoreRequested`. All delays of one request add up, so the injector judges for the
faults that delay (`Stage.delay_requests`); other faults may judge themselves (`Stage.judge`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from simdist.faults._fault import Fault, Machine

__all__ = ["StoreFault"]


class StoreFault(Fault):
    """The launcher's store, the one that torchrun serves at MASTER_ADDR and MASTER_PORT, misbehaves.

    A store that a rank serves itself is not affected. On real processes each rank's way to the store has a proxy, which
    asks the fault `request_delay_ns` and `drawn_delay_ns` for each request, and `lost_at_ns` once. With `keeps_store`
    torchrun shares its store with the ranks over restarts.
    """

    keeps_store: ClassVar[bool] = False

    def request_delay_ns(self, rank: int, now_ns: int) -> int:
        """Return how much longer a request takes that the rank makes now."""
        return 0

    def drawn_delay_ns(self, rank: int, now_ns: int, draw: Callable[[], float]) -> int:
        """Return how much longer it takes by chance; `draw` gives numbers from 0 to 1, the rank's own, from the seed.

        An override calls `draw` equally often for each request of a rank, also while the fault is off.
        """
        return 0

    def lost_at_ns(self) -> int | None:
        """Return when the store ends; None: it does not."""
        return None

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses runs without a launcher that serves the store."""
        if self.after is not None:
            return "on real processes only faults of ranks come after others"
        # See simdist.hardware._agent.
        return "with restarts rank 0 serves the store itself, and no launcher's" if machine.max_restarts else ""
