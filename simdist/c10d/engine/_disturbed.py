"""A flow on a network that faults disturb: the messages of one direction keep their order, and slow links are slow.

A latency that changes in time, or is drawn for each message, would let a message overtake an earlier one; messages of
one TCP connection never do. So a message arrives no sooner than the one before it to the same rank, and a receiver's
word that it has posted no sooner than its word before. An undisturbed network needs none of this, and its flows do not
pay for it.

A slow link lies behind the rank's own interface: messages to other ranks leave as if the slow link did not exist. The
interface sends a message at full speed; the messages between these two ranks then pass the slow link one by one.

Invariant, in addition to those of a flow: between two ranks, messages are worked out in the order in which they leave,
and so are words; `_order` has the last arrivals and departures. The ends of a transfer have a fourth moment: when the
interface has sent it.

Doubt: words and data of one direction share a connection, but do not wait for each other here: they are not worked out
in the order in which they leave.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from simdist.c10d.engine._flow import ChangingCosts, Flow
from simdist.cluster import Pace

__all__ = ["DisturbedFlow"]


class _Order:
    """The last message and the last word by (sender, receiver): when they arrive, and when the message has left."""

    def __init__(self) -> None:
        self.left_ns: dict[tuple[int, int], int] = {}
        self.messages_ns: dict[tuple[int, int], int] = {}
        self.words_ns: dict[tuple[int, int], int] = {}


def _behind(arrivals_ns: dict[tuple[int, int], int], pair: tuple[int, int], arrives_ns: int) -> int:
    """Return when something arrives behind the last arrival, at `arrives_ns` at the earliest; it is the last then."""
    last_ns = arrivals_ns[pair] = max(arrives_ns, arrivals_ns.get(pair, 0))
    return last_ns


class DisturbedFlow(Flow):
    """A `Flow` whose costs change in time."""

    _costs: ChangingCosts

    @cached_property
    def _order(self) -> _Order:
        return _Order()

    def retime(self, pace: Pace, since_ns: int) -> bool:
        """Like `Flow.retime`."""
        self._order = _Order()
        return super().retime(pace, since_ns)

    def _keep(self, source: int, target: int, ends: list[Any], posted_ns: int) -> None:
        self._heard_ns(source, target, posted_ns)
        self._note(source, target, *ends)

    def _note(self, source: int, target: int, sent: int, received: int, start: int, moved: int) -> None:
        if start >= 0:
            self._free_ns[source] = moved
            self._order.left_ns[source, target] = sent
            self.until_ns = max(self.until_ns, moved)
        for rank in (source, target):
            self._busy_ns[rank] = max(received, self._busy_ns.get(rank, 0))
        _behind(self._order.messages_ns, (source, target), received)

    def _heard_ns(self, source: int, target: int, posted_ns: int) -> int:
        """When the sender learns that the receiver has posted."""
        word_ns = posted_ns + self._costs.latency_ns(target, source, posted_ns)
        return _behind(self._order.words_ns, (target, source), word_ns)

    def _transfer(self, source: int, target: int, sent_ns: int, size: int, posted_ns: int) -> list[Any]:
        costs, pair = self._costs, (source, target)
        start = max(sent_ns, self._heard_ns(source, target, posted_ns))
        opened = costs.open_from_ns(source, target, start)
        if opened is None:
            return [None, None, -1, -1]
        start = moved = sent = opened
        wire_ns = round(size * costs.byte_ns(source, target))
        if wire_ns:
            start = max(opened, self._free_ns.get(source, 0))
            moved = start + wire_ns if self._pace is None else self._pace.end_ns(start, wire_ns)
            self._free_ns[source] = moved
            sent = costs.through_ns(source, target, size, max(start, self._order.left_ns.get(pair, 0)), moved)
        if self._is_cut_off(source, target, sent):
            return [None, None, -1, -1]
        received = sent + costs.latency_ns(source, target, start)
        received = max(received, self._order.messages_ns.get(pair, 0))
        if wire_ns:
            self._transfers.append((start, moved, source, target))
        ends = [sent, received, start if wire_ns else -1, moved]
        self._note(source, target, *ends)
        return ends
