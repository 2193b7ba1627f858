"""`LinkDelay`: messages take longer."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._between import FaultBetween
from simdist.faults._fields import DELAY
from simdist.faults._link_fault import LinkEffect
from simdist.faults._words import milliseconds

__all__ = ["LinkDelay"]


class LinkDelay(FaultBetween):
    """Every message from `src` to `dst` takes `delay_ns` longer; `both_ways` adds the other direction."""

    delay_ns: Annotated[int, DELAY]

    def effect(self) -> LinkEffect:
        """The delay."""
        return LinkEffect(delay_ns=self.delay_ns)

    def begins(self) -> str:
        """Between whom, and by how much."""
        return f"messages between ranks {self.src} and {self.dst} take {milliseconds(self.delay_ns)} longer"

    def ends(self) -> str:
        """As before."""
        return f"messages between ranks {self.src} and {self.dst} are no longer delayed"
