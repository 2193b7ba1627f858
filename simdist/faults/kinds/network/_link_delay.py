"""`LinkDelay`: messages take longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._between import FaultBetween
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import DELAY, SHARE
from simdist.faults._link_fault import LinkEffect
from simdist.faults._words import milliseconds

__all__ = ["LinkDelay"]


class LinkDelay(FaultBetween):
    """Every message from `src` to `dst` takes `delay_ns` longer; `both_ways` adds the other direction.

    With `jitter_ns` each takes up to so much longer in addition: how much is drawn for each, evenly. With a tail, a
    `tail_share` of the messages takes `tail_ns` longer in addition, as behind a full queue. Both are drawn from the
    seed. No message overtakes another: a message that leaves behind a late one arrives behind it.

    Example:
        >>> LinkDelay(src=0, dst=1, delay_ns=1_000_000, jitter_ns=500_000, tail_share=0.01, tail_ns=20_000_000).begins()
        'messages between ranks 0 and 1 take 1 to 1.5 ms longer, and a share of 0.01 of them 20 ms more'
    """

    delay_ns: Annotated[int, DELAY]
    jitter_ns: Annotated[int, DELAY] = 0
    tail_share: Annotated[float, SHARE] = 0.0
    tail_ns: Annotated[int, DELAY] = 0

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault between two ranks, and a tail of which one half is missing."""
        yield from super().problems(world)
        if world.fine("tail_share", "tail_ns"):
            if self.tail_share and not self.tail_ns:
                yield "tail_share", "needs tail_ns, by which this share of the messages takes longer"
            if self.tail_ns and not self.tail_share:
                yield "tail_ns", "needs tail_share, the share of the messages that take so much longer"

    def effect(self) -> LinkEffect:
        """Return the delay, and the drawn parts."""
        return LinkEffect(
            delay_ns=self.delay_ns, jitter_ns=self.jitter_ns, tail_share=self.tail_share, tail_ns=self.tail_ns
        )

    def begins(self) -> str:
        """Describe the link and the delay."""
        longer = milliseconds(self.delay_ns)
        if self.jitter_ns:
            longer = f"{self.delay_ns / 1e6:g} to {milliseconds(self.delay_ns + self.jitter_ns)}"
        tail = (
            f", and a share of {self.tail_share:g} of them {milliseconds(self.tail_ns)} more" if self.tail_share else ""
        )
        return f"messages between ranks {self.src} and {self.dst} take {longer} longer{tail}"

    def ends(self) -> str:
        """Describe the end of the delay."""
        return f"messages between ranks {self.src} and {self.dst} are no longer delayed"
