"""Faults of the links between ranks.

They are rules laid on the network, and no judges on the bus, because a link is asked about moments that have not come.
A collective in trouble is worked out ahead, message by message, and anew whenever something changes: each time for the
latency of a message that would leave at some later moment, and from when it gets through. An announcement happens once,
at the moment of its effect, and a verdict may draw, count or kill. A rule is a pure function of two ranks and a moment:
it may be asked any number of times, and the network tells its listeners when its answers change. A network without
rules is never asked, so that what goes well stays one flow with one timer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simdist.faults._fault import Machine
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage

__all__ = ["LinkEffect", "LinkFault"]


@dataclass(frozen=True, slots=True)
class LinkEffect:
    """What a fault does to messages from one rank to another: they take longer, are held until its end, or don't pass.

    In a simulation what does not pass waits for the end, as TCP sends again; on a real machine the packet is lost.
    """

    delay_ns: int = 0
    held: bool = False
    blocked: bool = False


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
        """What it does to messages from `src` to `dst`; None: nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no effect_on(self, src, dst)")

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Lay it on the network, pair by pair."""
        ranks = range(stage.world_size)
        span: dict[str, Any] = {"start_ns": start_ns, "until_ns": until_ns}
        for src in ranks:
            for dst in ranks:
                effect = self.effect_on(src, dst) if src != dst else None
                if effect is None:
                    continue
                if effect.delay_ns:
                    stage.keep(stage.network.delay(src, dst, effect.delay_ns, **span))
                if effect.held or effect.blocked:
                    stage.keep(stage.network.hold(src, dst, **span))

    @property
    def target(self) -> None:
        """None: it strikes links, whatever ranks it names."""
        return

    def real_obstacle(self, machine: Machine) -> str:
        """It takes a network of the ranks' own."""
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
