"""Flows on a network, and the links under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simdist.cluster._pace import Pace

__all__ = ["Flow", "Link", "Load"]


class Link:
    """A thing through which bytes pass one way. `flows` has the share of it that each flow takes at full speed."""

    __slots__ = ("flows", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.flows: dict[Flow, float] = {}

    def __repr__(self) -> str:
        return f"Link({self.name!r})"


Load = Mapping[Link, float]  # the share of each link's bandwidth that a flow takes at full speed


class Flow:
    """Bytes on their way. Made by `Network.begin` and `Network.follow`."""

    # Defaults that a lone flow never changes are here, and not in each flow: one is made for every collective.
    since_ns = -1  # since when it has its speed; -1: since its entry
    left_ns = 0.0  # the remaining time then, at full speed
    speed = 1.0
    asks: Callable[[], tuple[Load, int]] | None = None  # of a followed flow; see `_wires.py`
    pace: Pace | None = None  # its speeds, once it had another one than the full one
    links: Load | None = None  # the links that it is on; None: no other flow was there yet, or it is over
    look_ns = -1  # the next moment at which its links are shared out because of this flow; -1: none is planned
    sequence = -1  # in the order in which flows were put on links

    def __init__(
        self, entry_ns: int, end_ns: int, byte_ns: float, load: Callable[[], Load] | None, moved: Callable[[], None]
    ) -> None:
        self.entry_ns = entry_ns  # when its bytes begin to move
        self.end_ns = end_ns  # as far as is known
        self.byte_ns = byte_ns  # the time of one byte at full speed, for fairness between flows
        self.load = load  # called once, when there is another flow for the first time
        self.moved = moved  # called when the speed, and with it the end, changes

    def release(self) -> None:
        """Drop the references to its owner: the flow is over, and the network may remember it for long."""
        self.moved, self.load = _do_nothing, None


def _do_nothing() -> None:
    pass
