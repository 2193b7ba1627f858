"""What a message between two ranks costs at a given instant, faults included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simdist.cluster._graph import Cluster

__all__ = ["Network", "Path"]


@dataclass(frozen=True, slots=True)
class Path:
    """The way from one rank to another: one-way latency, and transfer time per byte in ns."""

    latency_ns: int
    byte_ns: float


@dataclass(frozen=True, slots=True)
class _Delay:
    source: int
    target: int
    delay_ns: int
    start_ns: int
    until_ns: int | None


@dataclass(frozen=True, slots=True)
class _Cut:
    side: dict[int, int]  # rank -> which side it is on; ranks on none reach everyone
    start_ns: int
    until_ns: int | None


def _active(condition: _Delay | _Cut, now_ns: int) -> bool:
    return condition.start_ns <= now_ns and (condition.until_ns is None or now_ns < condition.until_ns)


class Network:
    """A cluster plus the conditions that faults put on it.

    Example:
        >>> network = Network(build(2, latency_ns=10_000))
        >>> network.delay(0, 1, 5_000)
        >>> network.latency_ns(0, 1, now_ns=0)
        55000
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._paths: dict[tuple[str, str], Path] = {}
        self._delays: list[_Delay] = []
        self._cuts: list[_Cut] = []

    def path(self, source: int, target: int) -> Path:
        """The undisturbed way between two ranks."""
        placement = self.cluster.placement
        ends = placement[source], placement[target]
        path = self._paths.get(ends)
        if path is None:
            latency_ns, bandwidth = self.cluster.path(*ends)
            path = self._paths[ends] = Path(latency_ns, 1e9 / bandwidth)
        return path

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency of a message that leaves now."""
        latency_ns = self.path(source, target).latency_ns
        for delay in self._delays:
            if delay.source == source and delay.target == target and _active(delay, now_ns):
                latency_ns += delay.delay_ns
        return latency_ns

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through: now, the end of a partition, or None for never."""
        moment = now_ns
        for _ in range(len(self._cuts) + 1):
            blocking = [
                cut
                for cut in self._cuts
                if _active(cut, moment)
                and cut.side.get(source, -1) != cut.side.get(target, -1)
                and source in cut.side
                and target in cut.side
            ]
            if not blocking:
                return moment
            ends = [cut.until_ns for cut in blocking]
            if None in ends:
                return None
            moment = max(end for end in ends if end is not None)
        return moment

    @property
    def disturbed(self) -> bool:
        """True if any delay or cut was ever added: closed forms no longer tell the whole story."""
        return bool(self._cuts or self._delays)

    def delay(self, source: int, target: int, delay_ns: int, *, start_ns: int = 0, until_ns: int | None = None) -> None:
        """Make messages from `source` to `target` take `delay_ns` longer while the condition lasts."""
        self._delays.append(_Delay(source, target, delay_ns, start_ns, until_ns))

    def cut(self, groups: Iterable[Iterable[int]], *, start_ns: int = 0, until_ns: int | None = None) -> None:
        """Let nothing pass between ranks of different `groups` while the condition lasts."""
        side = {rank: index for index, group in enumerate(groups) for rank in group}
        self._cuts.append(_Cut(side, start_ns, until_ns))
