"""Hosts, the links between them, and which rank runs where."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import networkx as nx

from simdist.errors import TopologyError

__all__ = ["Cluster", "build"]

# One machine, Gloo over loopback TCP (measured on 2 cores: barrier of 2 ranks 0.23 ms, 64 MiB broadcast 17 ms).
LOCAL_LATENCY_NS = 50_000
LOCAL_BANDWIDTH = 4_000_000_000
# A 25 Gbit/s Ethernet and a kernel network stack on both sides.
NETWORK_LATENCY_NS = 80_000
NETWORK_BANDWIDTH = 3_125_000_000


@dataclass(frozen=True, eq=False)
class Cluster:
    """A graph whose nodes are host and switch names; each edge has `latency_ns` and `bandwidth` (bytes per second).

    `placement[r]` is the host of rank r. Messages between ranks of one host use `local_latency_ns` and
    `local_bandwidth`; all others take the path of least latency. In a reduction of at least `reduction_from_bytes` the
    data takes `reduction_slowdown` times as long on every link, and a message's latency is
    `reduction_latency_slowdown` times as long: data is not only moved but added up, by a core that has to be free.

    Raises:
        TopologyError: a placement names no node, an edge lacks a cost, or two hosts cannot reach each other.

    Example:
        >>> cluster = build(8, hosts=2, latency_ns=20_000)
        >>> cluster.placement
        ('host0', 'host0', 'host0', 'host0', 'host1', 'host1', 'host1', 'host1')
    """

    graph: nx.Graph[str] = field(repr=False)
    placement: tuple[str, ...]
    local_latency_ns: int = LOCAL_LATENCY_NS
    local_bandwidth: int = LOCAL_BANDWIDTH
    reduction_slowdown: float = 1.0
    reduction_latency_slowdown: float = 1.0
    reduction_from_bytes: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"rank {r} is placed on {h!r}, no such host" for r, h in enumerate(self.placement) if h not in self.graph
        ]
        for a, b, data in self.graph.edges(data=True):
            for name in ("latency_ns", "bandwidth"):
                value = data.get(name)
                if not isinstance(value, int) or value < (1 if name == "bandwidth" else 0):
                    problems.append(f"link {a} - {b}: {name} is {value!r}, expected a positive integer")
        hosts = [host for host in dict.fromkeys(self.placement) if host in self.graph]
        problems += [
            f"no path from {hosts[0]} to {host}" for host in hosts[1:] if not nx.has_path(self.graph, hosts[0], host)
        ]
        if self.local_bandwidth < 1 or self.local_latency_ns < 0:
            problems.append("local latency and bandwidth must be positive")
        if not min(self.reduction_slowdown, self.reduction_latency_slowdown) > 0 or self.reduction_from_bytes < 0:
            problems.append("a reduction's slowdowns and least size must be positive")
        if problems:
            raise TopologyError("; ".join(problems))

    @property
    def world_size(self) -> int:
        """How many ranks are placed."""
        return len(self.placement)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have ranks, in the order of their first rank."""
        return tuple(dict.fromkeys(self.placement))

    def ranks_of(self, host: str) -> list[int]:
        """The ranks on `host`, ascending."""
        return [rank for rank, name in enumerate(self.placement) if name == host]

    def path(self, source: str, target: str) -> tuple[int, int]:
        """Latency in ns and bandwidth in bytes per second between two hosts."""
        if source == target:
            return self.local_latency_ns, self.local_bandwidth
        nodes = nx.shortest_path(self.graph, source, target, weight="latency_ns")
        edges: Sequence[dict[str, int]] = [self.graph.edges[a, b] for a, b in itertools.pairwise(nodes)]
        return sum(edge["latency_ns"] for edge in edges), min(edge["bandwidth"] for edge in edges)


def build(
    world_size: int,
    *,
    hosts: int = 1,
    latency_ns: int | None = None,
    bandwidth_bytes_per_s: int | None = None,
    local_latency_ns: int | None = None,
    local_bandwidth_bytes_per_s: int | None = None,
    reduction_slowdown: float = 1.0,
    reduction_latency_slowdown: float = 1.0,
    reduction_from_bytes: int = 0,
) -> Cluster:
    """`hosts` machines on one switch, with the ranks in blocks of equal size on them.

    Latency and bandwidth are those between two hosts; the `local_` ones those inside a host. For reductions see
    `Cluster`; `simdist calibrate` measures all of them but those between hosts.

    Raises:
        TopologyError: the ranks do not fill the hosts evenly, or a number is out of range.
    """
    if world_size < 1 or hosts < 1 or world_size % hosts:
        raise TopologyError(f"{world_size} ranks do not fill {hosts} hosts evenly")
    latency = NETWORK_LATENCY_NS if latency_ns is None else latency_ns
    bandwidth = NETWORK_BANDWIDTH if bandwidth_bytes_per_s is None else bandwidth_bytes_per_s
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node("switch", kind="switch")
    for index in range(hosts):
        # Half the latency on each side of the switch, nothing lost to rounding.
        share = latency // 2 if index else latency - latency // 2
        graph.add_edge(f"host{index}", "switch", latency_ns=share, bandwidth=bandwidth)
    if hosts > 2:
        for index in range(hosts):
            graph.edges[f"host{index}", "switch"]["latency_ns"] = latency // 2
    each = world_size // hosts
    return Cluster(
        graph,
        tuple(f"host{rank // each}" for rank in range(world_size)),
        LOCAL_LATENCY_NS if local_latency_ns is None else local_latency_ns,
        LOCAL_BANDWIDTH if local_bandwidth_bytes_per_s is None else local_bandwidth_bytes_per_s,
        reduction_slowdown,
        reduction_latency_slowdown,
        reduction_from_bytes,
    )
