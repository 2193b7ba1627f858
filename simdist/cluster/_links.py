"""The links of a cluster that a message takes from one rank to another.

Two readings of a cluster's graph. By default every rank has its costs to itself: one interface for messages to other
hosts and one for its own host, each out and in, as wide as the path that a message takes; the edges of the graph only
give latency and bandwidth of the paths. That is what a calibration measures, with all ranks busy at once. In a cluster
with `shared_links` every edge is a wire each way, which all messages over it share, and every node that has a bandwidth
(the bus of a host, the backplane of a switch) carries everything that passes through it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simdist.cluster._flows import Link
from simdist.cluster._graph import Cluster

__all__ = ["Links", "Path", "shares"]


@dataclass(frozen=True, slots=True)
class Path:
    """The way from one rank to another: one-way latency, and transfer time per byte in ns."""

    latency_ns: int
    byte_ns: float


class Links:
    """All links of a cluster, each made when it is first needed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._links: dict[tuple[str, Any, Any], Link] = {}
        self._ends = cluster.ends
        self._paths: dict[tuple[str, str], Path] = {}
        self._routes: dict[tuple[int, int], tuple[tuple[Link, float], ...]] = {}

    def path(self, source: int, target: int) -> Path:
        """The undisturbed path between two ranks."""
        ports = self._ends
        ends = ports[source], ports[target]
        path = self._paths.get(ends)
        if path is None:
            latency_ns, bandwidth = self._cluster.path(*ends)
            path = self._paths[ends] = Path(latency_ns, 1e9 / bandwidth)
        return path

    def route(self, source: int, target: int) -> tuple[tuple[Link, float], ...]:
        """The links that a message takes, each with the time per byte in ns for which it is busy."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = tuple(self._find(source, target))
        return found

    def busy_ns(self, traffic: Iterable[tuple[int, int, float]]) -> dict[Link, float]:
        """How long each link is busy with the traffic between ranks: (source, target, bytes)."""
        busy: dict[Link, float] = {}
        for source, target, size in traffic:
            for link, byte_ns in self.route(source, target):
                busy[link] = busy.get(link, 0.0) + size * byte_ns
        return busy

    def _find(self, source: int, target: int) -> Iterable[tuple[Link, float]]:
        cluster = self._cluster
        ends = cluster.ends[source], cluster.ends[target]
        local = ends[0] == ends[1]
        if local or not cluster.shared_links:
            byte_ns = self.path(source, target).byte_ns
            kind = "loopback" if local else "interface"
            yield self._link(f"{kind} out of rank", source), byte_ns
            yield self._link(f"{kind} into rank", target), byte_ns
        if not cluster.shared_links:
            return
        nodes = [ends[0]] if local else cluster.route(*ends)
        for node in nodes:
            if "bandwidth" in cluster.graph.nodes[node]:
                yield self._link("node", node), 1e9 / cluster.graph.nodes[node]["bandwidth"]
        for a, b in itertools.pairwise(nodes):
            yield self._link("wire", a, b), 1e9 / cluster.graph.edges[a, b]["bandwidth"]

    def _link(self, kind: str, end: Any, other: Any = None) -> Link:
        link = self._links.get((kind, end, other))
        if link is None:
            name = f"{kind} {end}" if other is None else f"{kind} {end} -> {other}"
            link = self._links[kind, end, other] = Link(name)
        return link


def shares(busy: Mapping[Link, float], wire_ns: float, *, heavy: bool = False) -> dict[Link, float]:
    """The shares of links that a flow takes at full speed: each link's busy time over `wire_ns`, the flow's alone.

    Unless the flow may be `heavy`, no share exceeds the whole link: traffic that the closed form of a collective leaves
    out (all that reaches the root of a reduce at once) costs nothing.
    """
    return {link: amount / wire_ns if heavy else min(1.0, amount / wire_ns) for link, amount in busy.items() if amount}
