"""`StoreLost`: the launcher's store ends."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._fields import DELAY
from simdist.faults._stage import Stage
from simdist.faults._store_fault import StoreFault

__all__ = ["StoreLost"]


class StoreLost(StoreFault):
    """The launcher's store ends at `at_ns`: connections to it end, and new ones are refused.

    A restart brings a new one.
    """

    at_ns: Annotated[int, DELAY]

    def lost_at_ns(self) -> int:
        """Return the time of the loss."""
        return self.at_ns

    def arm(self, stage: Stage) -> None:
        """End the store at its time."""

        def lose() -> None:
            stage.report()
            stage.lose_store()

        stage.call_at(stage.origin_ns + self.at_ns, lose)

    def begins(self) -> str:
        """Describe the loss."""
        return "the launcher's store is gone"
