"""`Hold`: messages stay in flight."""

from __future__ import annotations

from typing import Annotated, ClassVar

from simdist.faults._between import FaultBetween
from simdist.faults._fault import Machine
from simdist.faults._fields import TRUTH
from simdist.faults._link_fault import LinkEffect

__all__ = ["Hold"]


class Hold(FaultBetween):
    """Messages from `src` to `dst` stay in flight until `until_ns`, or until the fault is lifted (None).

    They keep their order, and leave at the time of release, as if sent then. `both_ways` holds the other direction too.
    """

    says_its_end: ClassVar[bool] = True

    both_ways: Annotated[bool, TRUTH] = False

    def effect(self) -> LinkEffect:
        """Messages are held."""
        return LinkEffect(held=True)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses one direction alone."""
        if not self.both_ways and machine.backend == "gloo" and machine.nodes == 1 and self.after is None:
            return (
                "Gloo sends nothing that the receiver has not asked for, so holding one direction stops the other, too"
            )
        return super().real_obstacle(machine)

    def begins(self) -> str:
        """Describe the link."""
        return f"messages {self._between()} are held"

    def ends(self) -> str:
        """Describe the release of the messages."""
        return f"messages {self._between()} are released"

    def _between(self) -> str:
        if self.both_ways:
            return f"between ranks {self.src} and {self.dst}"
        return f"from rank {self.src} to rank {self.dst}"
