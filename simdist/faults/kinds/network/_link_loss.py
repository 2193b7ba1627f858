"""`LinkLoss`: packets are lost, and TCP sends them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._between import FaultBetween
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import SHARE
from simdist.faults._link_fault import LinkEffect

__all__ = ["LinkLoss"]


class LinkLoss(FaultBetween):
    """A `share` of the packets from `src` to `dst` is lost; `both_ways` adds the other direction. Drawn from the seed.

    The connection does not break: TCP sends lost packets again. On real processes packets are lost. In a simulation
    each message is one packet, and so is a receiver's note to the sender that it is ready. A lost packet arrives by a
    retransmission: 200 ms later, or 400 ms after that if it is lost again, then 800 ms, up to 2 minutes, as Linux waits
    at least. Packets that leave behind it in the same direction wait for it.

    This is right for messages of one packet. Packets in the middle of a large message are lost as well, and sent again
    after a round trip (fast retransmit): that costs little and is left out. So are the round trip that Linux adds to
    each wait, and the end of a connection on which nothing arrives for 15 minutes. A simulation of NCCL does not follow
    messages: each step around the ring is one packet of each pair.

    Example:
        >>> LinkLoss(src=0, dst=1, share=0.01).begins()
        'a share of 0.01 of the packets between ranks 0 and 1 is lost'
    """

    share: Annotated[float, SHARE]

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault between two ranks, and a share of nothing."""
        yield from super().problems(world)
        if world.fine("share") and self.share == 0:
            yield "share", "of a share of 0 nothing is lost"

    def effect(self) -> LinkEffect:
        """Return the loss."""
        return LinkEffect(lost=self.share)

    def begins(self) -> str:
        """Describe the share of lost packets, and the link."""
        return f"a share of {self.share:g} of the packets {self._between()} is lost"

    def ends(self) -> str:
        """Describe the end of the loss."""
        return f"packets {self._between()} are no longer lost"

    def _between(self) -> str:
        if self.both_ways:
            return f"between ranks {self.src} and {self.dst}"
        return f"from rank {self.src} to rank {self.dst}"
