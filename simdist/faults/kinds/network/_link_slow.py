"""`LinkSlow`: a link has less bandwidth."""

from __future__ import annotations

from typing import Annotated

from simdist.faults._between import FaultBetween
from simdist.faults._link_fault import LinkEffect
from simdist.values import Bandwidth

__all__ = ["LinkSlow"]


class LinkSlow(FaultBetween):
    """No more than `bandwidth` bytes per second get from `src` to `dst`; `both_ways` limits the other direction, too.

    The effect is that of a slow cable between the two ranks alone: the data of a message moves at this rate while the
    fault lasts, the next message between the two waits behind it, and messages to other ranks do not. On real processes
    all messages share the rate; in a simulation each operation has all of it, and only messages of one operation, or
    sends of one group, share it. A bandwidth that is more than the link has changes nothing.

    Example:
        >>> LinkSlow(src=0, dst=1, bandwidth=10_000_000).begins()
        'no more than 10 MB/s get through between ranks 0 and 1'
    """

    bandwidth: Annotated[int, Bandwidth()]

    def effect(self) -> LinkEffect:
        """Return the limit."""
        return LinkEffect(bandwidth=self.bandwidth)

    def begins(self) -> str:
        """Describe the reduced bandwidth, and the link."""
        return f"no more than {self.bandwidth / 1e6:g} MB/s get through {self._between()}"

    def ends(self) -> str:
        """Describe the end of the reduction."""
        return f"the bandwidth {self._between()} is as before"

    def _between(self) -> str:
        if self.both_ways:
            return f"between ranks {self.src} and {self.dst}"
        return f"from rank {self.src} to rank {self.dst}"
