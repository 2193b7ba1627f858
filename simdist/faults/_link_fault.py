"""Faults of the links between ranks.

They are rules laid on the network, and not judges on the bus, because the network asks about moments that lie ahead. It
works out a collective in trouble ahead, message by message, and anew whenever something changes: each time it asks for
the latency of a message that would leave at a later moment, and from when it gets through. An announcement happens
once, at the moment of its effect, and a verdict may draw, count or kill. A rule is a pure function of two ranks and a
moment: it may be asked any number of times, and the network calls its listeners when its answers change. A network
without rules is never asked, so that an undisturbed operation stays one flow with one timer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simdist.faults._fault import Machine
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.values import LONGEST_NS

__all__ = ["LinkEffect", "LinkFault", "lay_between"]


# How long Linux waits for an acknowledgement before it sends again on a fast link, and at most (include/net/tcp.h:
# TCP_RTO_MIN, TCP_RTO_MAX). It waits twice as long each time.
_FIRST_WAIT_NS, _LONGEST_WAIT_NS = 200_000_000, 120_000_000_000


@dataclass(frozen=True, slots=True)
class LinkEffect:
    """A fault's effect on messages from one rank to another: they take longer, are held until its end, or don't pass.

    Each message takes `delay_ns` longer, up to `jitter_ns` more, which is drawn, and `tail_ns` more if it is among a
    share of `tail_share`, which is drawn, too. None overtakes another. In a simulation a message that does not pass
    waits for the end, as TCP sends again; on a real machine the packet is lost. On both, a drawn share of `lost` of the
    packets is lost; in a simulation a message is one packet, and arrives by a retransmission. No more than `bandwidth`
    bytes per second pass; 0 is no limit.
    """

    delay_ns: int = 0
    held: bool = False
    blocked: bool = False
    jitter_ns: int = 0
    tail_share: float = 0.0
    tail_ns: int = 0
    lost: float = 0.0
    bandwidth: int = 0

    @property
    def is_drawn(self) -> bool:
        """True if it draws anything for each message."""
        return bool(self.jitter_ns or (self.tail_share and self.tail_ns) or self.lost)

    def longer_ns(self, draw: Callable[..., float], src: int, dst: int, now_ns: int) -> int:
        """Return how much longer than `delay_ns` a packet takes that leaves now; `draw` gives a number for words."""
        extra_ns = int(draw("jitter", src, dst, now_ns) * (self.jitter_ns + 1)) if self.jitter_ns else 0
        if self.tail_share and self.tail_ns and draw("tail", src, dst, now_ns) < self.tail_share:
            extra_ns += self.tail_ns
        return extra_ns

    def loses(self, draw: Callable[..., float], src: int, dst: int, now_ns: int) -> bool:
        """True if a packet that leaves now is lost."""
        return bool(self.lost) and draw("lost", src, dst, now_ns) < self.lost

    def sent_again_ns(self, draw: Callable[..., float], src: int, dst: int, now_ns: int, until_ns: int | None) -> int:
        """Return how long after now a message leaves for the last time, if this lasts until then; 0 if not lost."""
        moment, wait_ns = now_ns, _FIRST_WAIT_NS
        while (until_ns is None or moment < until_ns) and self.loses(draw, src, dst, moment):
            if moment - now_ns > LONGEST_NS:
                break  # longer than any wait
            moment += wait_ns
            wait_ns = min(2 * wait_ns, _LONGEST_WAIT_NS)
        return moment - now_ns


class LinkFault(LastingFault):
    """Messages between ranks go astray while it lasts. A subclass says which and how, in `effect_on`.

    Example:
        >>> from typing import Annotated
        >>> from simdist.faults import RANK
        >>> class FarAway(LinkFault):
        ...     rank: Annotated[int, RANK]
        ...     def effect_on(self, src, dst):
        ...         return LinkEffect(delay_ns=30_000_000) if self.rank in (src, dst) else None
        >>> FarAway(rank=2, start_ns=1_000_000_000).effect_on(0, 2).delay_ns
        30000000
    """

    def effect_on(self, src: int, dst: int) -> LinkEffect | None:
        """Return its effect on messages from `src` to `dst`; None: none."""
        raise NotImplementedError(f"{type(self).__name__} has no effect_on(self, src, dst)")

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Lay it on the network, pair by pair."""
        ranks = range(stage.world_size)
        for src in ranks:
            for dst in ranks:
                effect = self.effect_on(src, dst) if src != dst else None
                if effect is not None:
                    lay_between(stage, src, dst, effect, start_ns, until_ns)

    @property
    def target(self) -> None:
        """None: it strikes links, not ranks."""
        return

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses machines on which ranks can't have a network of their own."""
        if self.after is not None:
            return "on real processes only faults of ranks come after others"
        if machine.backend != "gloo":
            return (
                "link faults need ranks that talk through the network, and those of "
                f"{machine.backend} on one machine do not"
            )
        if machine.nodes > 1:
            return "link faults strike links between ranks on one machine"
        missing = machine.no_network()
        return f"link faults need root, network namespaces and TUN devices: {missing}" if missing else ""


def lay_between(stage: Stage, src: int, dst: int, effect: LinkEffect, start_ns: int, until_ns: int | None) -> None:
    """Lay an effect on the messages from one rank to another."""
    span: dict[str, Any] = {"start_ns": start_ns, "until_ns": until_ns}
    endless = until_ns is None and effect.lost >= 1
    if effect.held or effect.blocked or endless:
        stage.keep(stage.network.hold(src, dst, **span))
    if effect.bandwidth:
        stage.keep(stage.network.limit(src, dst, effect.bandwidth, **span))
    if effect.is_drawn and not endless:
        drawn_ns = functools.partial(_drawn_ns, effect, stage.number, src, dst)
        stage.keep(stage.network.delay(src, dst, effect.delay_ns, drawn_ns=drawn_ns, **span))
    elif effect.delay_ns:
        stage.keep(stage.network.delay(src, dst, effect.delay_ns, **span))


def _drawn_ns(
    effect: LinkEffect, draw: Callable[..., float], src: int, dst: int, now_ns: int, until_ns: int | None
) -> int:
    again_ns = effect.sent_again_ns(draw, src, dst, now_ns, until_ns)
    return again_ns + effect.longer_ns(draw, src, dst, now_ns + again_ns)
