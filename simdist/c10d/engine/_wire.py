"""The load of operations on the wires: a collective in its good case, and one that is followed message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from simdist.cluster import Load, Network

__all__ = ["LIGHT_NS", "FollowedLoad", "Transfer", "WireCost", "under_way"]

Transfer = tuple[int, int, int, int]  # a message of a followed collective: when it leaves, has left; sender, receiver

# Operations whose bytes move in less than this, alone, are not on the wires at all: they would slow others down by as
# little, and sharing out links among a few bytes costs more than the rest of their simulation. (400 bytes at 4 GB/s.)
LIGHT_NS = 100
_EXACT = 16  # up to this many messages ahead, each is on the links from its own begin to its own end
_WINDOWS = 8  # into this many windows more messages are divided, each with the average load


class WireCost:
    """A collective of one group, all of whose members have arrived and nothing is wrong: one flow.

    `duration_ns` is the time from the last arrival to completion when nothing else is on the links; bytes move in the
    last `wire_ns` of it. `load` is computed when it is first needed.
    """

    __slots__ = ("_found", "_network", "byte_ns", "duration_ns", "traffic", "wire_ns")

    def __init__(
        self,
        network: Network,
        duration_ns: int,
        wire_ns: int,
        byte_ns: float,
        traffic: Callable[[], Iterable[tuple[int, int, float]]],
    ) -> None:
        if wire_ns and network.cluster.shared_links:
            # The closed form knows pairs of ranks; where these share links, the fullest link may take longer.
            longest_ns = round(network.busiest_ns(traffic()))
            if longest_ns > wire_ns:
                duration_ns, wire_ns = duration_ns + longest_ns - wire_ns, longest_ns
        self.duration_ns = duration_ns
        self.wire_ns = min(wire_ns, duration_ns)
        self.byte_ns = byte_ns
        self._network = network
        self.traffic = traffic  # how many bytes which rank sends to which, by ranks of the world
        self._found: Load | None = None

    def load(self) -> Load:
        """The share of each link that it takes."""
        if self._found is None:
            self._found = self._network.load(self.traffic())
        return self._found


class _Followed(Protocol):
    def under_way(self, now_ns: int) -> tuple[Sequence[tuple[int, int, float]], int]:
        """Which rank sends to which for which part of the time from now on, and until when that holds."""
        ...


class FollowedLoad:
    """The load of a collective that is followed, at one moment; `ranks` gives the world's rank of a member."""

    def __init__(self, network: Network, ranks: Callable[[int], int]) -> None:
        self._network = network
        self._ranks = ranks

    def of(self, flow: _Followed) -> tuple[Load, int]:
        """The share of each link that it takes, and until when."""
        network, ranks = self._network, self._ranks
        assert network.clock is not None
        parts, until_ns = flow.under_way(network.clock.now_ns)
        pairs = [(ranks(source), ranks(target), part) for source, target, part in parts]
        traffic = [(source, target, part / network.path(source, target).byte_ns) for source, target, part in pairs]
        return network.followed_load(traffic), until_ns


def under_way(transfers: Iterable[Transfer], now_ns: int) -> tuple[list[tuple[int, int, float]], int]:
    """Which rank sends to which for which part of the time from now on, and until when that holds.

    A few messages count from begin to end each; many are averaged over a part of the time that they take.
    """
    ahead = [each for each in transfers if each[1] > now_ns]
    if not ahead:
        return [], now_ns
    if len(ahead) <= _EXACT:
        parts = [(source, target, 1.0) for begin, _, source, target in ahead if begin <= now_ns]
        return parts, min(begin if begin > now_ns else end for begin, end, _, _ in ahead)
    window_ns = -(-(max(end for _, end, _, _ in ahead) - now_ns) // _WINDOWS)
    until_ns = now_ns + window_ns
    busy: dict[tuple[int, int], int] = {}
    for begin, end, source, target in ahead:
        if begin < until_ns:
            pair = source, target
            busy[pair] = busy.get(pair, 0) + min(end, until_ns) - max(begin, now_ns)
    return [(*pair, amount / window_ns) for pair, amount in busy.items()], until_ns
