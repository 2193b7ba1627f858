"""What a message between two ranks costs at a given instant, faults included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from simdist.cluster._graph import Cluster

__all__ = ["Condition", "Network", "Path"]


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

    def blocks(self, source: int, target: int) -> bool:
        return source in self.side and target in self.side and self.side[source] != self.side[target]


@dataclass(frozen=True, slots=True)
class _Hold:
    source: int
    target: int
    start_ns: int
    until_ns: int | None

    def blocks(self, source: int, target: int) -> bool:
        return source == self.source and target == self.target


class Condition:
    """One condition on a network, for `Network.lift`."""

    __slots__ = ("_what",)

    def __init__(self, what: _Delay | _Cut | _Hold) -> None:
        self._what = what


def _active(condition: _Delay | _Cut | _Hold, now_ns: int) -> bool:
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
        self._barriers: list[_Cut | _Hold] = []
        self.listeners: list[Callable[[], None]] = []  # told when a condition comes or goes

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
        """When a message that leaves now gets through: now, the end of a partition or hold, or None for never."""
        moment = now_ns
        for _ in range(len(self._barriers) + 1):
            blocking = [each for each in self._barriers if _active(each, moment) and each.blocks(source, target)]
            if not blocking:
                return moment
            ends = [barrier.until_ns for barrier in blocking]
            if None in ends:
                return None
            moment = max(end for end in ends if end is not None)
        return moment

    @property
    def disturbed(self) -> bool:
        """True if any condition was ever added: closed forms no longer tell the whole story."""
        return bool(self._barriers or self._delays)

    def delay(
        self, source: int, target: int, delay_ns: int, *, start_ns: int = 0, until_ns: int | None = None
    ) -> Condition:
        """Make messages from `source` to `target` take `delay_ns` longer while the condition lasts."""
        delay = _Delay(source, target, delay_ns, start_ns, until_ns)
        self._delays.append(delay)
        return self._added(delay)

    def cut(self, groups: Iterable[Iterable[int]], *, start_ns: int = 0, until_ns: int | None = None) -> Condition:
        """Let nothing pass between ranks of different `groups` while the condition lasts."""
        side = {rank: index for index, group in enumerate(groups) for rank in group}
        cut = _Cut(side, start_ns, until_ns)
        self._barriers.append(cut)
        return self._added(cut)

    def hold(self, source: int, target: int, *, start_ns: int = 0, until_ns: int | None = None) -> Condition:
        """Keep messages from `source` to `target` in flight while the condition lasts.

        They keep their order, and leave at its end as if sent then.
        """
        hold = _Hold(source, target, start_ns, until_ns)
        self._barriers.append(hold)
        return self._added(hold)

    def lift(self, condition: Condition, now_ns: int) -> None:
        """End a condition now; does nothing to one that has ended."""
        old = condition._what
        if old.until_ns is not None and old.until_ns <= now_ns:
            return
        new: Any = replace(old, until_ns=now_ns)
        conditions: list[Any] = self._delays if isinstance(old, _Delay) else self._barriers
        conditions[next(index for index, each in enumerate(conditions) if each is old)] = new
        condition._what = new
        self._tell()

    def _added(self, what: _Delay | _Cut | _Hold) -> Condition:
        self._tell()
        return Condition(what)

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()
