"""NCCL's own estimate of an operation's time, by which it chooses algorithm and protocol (graph/tuning.cc).

A time is a latency plus bytes over a bandwidth, for ring and tree and for each of the protocols LL, LL128 and Simple;
the least time wins. In doubt: NVLink SHARP, CollNet and PAT are left out, because switches add up in them, in an
unpublished order. The graph is one channel after the other, as in published graphs, and is not searched for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl.kernels._preferences import Preferences

from simdist.c10d.calls import RINGS

__all__ = ["ALGORITHMS", "PROTOCOLS", "Choice", "Graph", "choose", "estimates", "shrunk_channels"]

ALGORITHMS = ("tree", "ring")
PROTOCOLS = ("ll", "ll128", "simple")
_ARCHITECTURES = ("volta", "ampere", "hopper", "blackwell")

# Microseconds, by protocol.
_BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
_HOP = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)},
    "pci": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)},
}
# GB/s on one node, two nodes, more nodes; by architecture.
_LL_TOTAL = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128 = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_TREE_LL128 = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
# The share of its bandwidth that a tree reaches, by the logarithm of (bytes / 64).
_TREE_FACTORS = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
_THREADS = {"ll": 512, "ll128": 640, "simple": 512}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The graph that NCCL has found: channels, each with the bandwidth `intra` or `inter`, in GB/s."""

    ranks: int
    nodes: int
    channels: int
    intra: float
    inter: float
    architecture: str = "hopper"
    links: str = "nvlink"  # within a node
    cpu: str = "intel"

    @property
    def per_node(self) -> int:
        """The number of ranks of a node."""
        return self.ranks // self.nodes


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm with a protocol: its latency, the bandwidth of the operation's bytes, and its time."""

    algorithm: str
    protocol: str
    latency_us: float
    bandwidth: float  # GB/s
    time_us: float


def estimates(graph: Graph, operation: str, size: int, preferences: Preferences | None = None) -> list[Choice]:
    """Return all choices for an operation on `size` bytes: those of all ranks together, if it gathers or scatters."""
    asked = preferences is not None and preferences.forces(operation, "ll128")
    made = []
    for algorithm in ALGORITHMS:
        if algorithm == "tree" and operation != "all_reduce":
            continue
        for place, protocol in enumerate(PROTOCOLS):
            if protocol == "ll128" and graph.links != "nvlink" and not asked:
                continue
            if preferences is not None and not preferences.allows(operation, algorithm, protocol):
                continue
            bandwidth = _bandwidth(graph, operation, algorithm, place)
            latency = _latency(graph, operation, algorithm, place)
            if algorithm == "tree":
                step = int(math.log2(size / 64)) if size >= 64 else 0
                factors = _TREE_FACTORS[place]
                used, late = bandwidth * (factors[step] if step < len(factors) else 1.0), latency
            else:
                used, late = bandwidth, latency * _ring_penalty(graph, operation, protocol, size)
            made.append(Choice(algorithm, protocol, latency, bandwidth, late + size / (1000 * used)))
    return made


def choose(
    graph: Graph,
    operation: str,
    size: int,
    preferences: Preferences | None = None,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
) -> Choice:
    """Return the fastest allowed choice; if no possible choice is allowed, the fastest possible one.

    `preferences`, from the ranks' environment, come before `algorithm` and `protocol`, and must leave a choice.
    """
    every = estimates(graph, operation, size, preferences)
    allowed = [each for each in every if algorithm in ("auto", each.algorithm)] or every
    allowed = [each for each in allowed if protocol in ("auto", each.protocol)] or allowed
    return min(allowed, key=lambda each: each.time_us)


def shrunk_channels(
    graph: Graph, choice: Choice, size: int, channels: int | None = None, preferences: Preferences | None = None
) -> int:
    """Return over how many channels `size` bytes are spread, of `channels`, or of those of the graph."""
    threshold = {"ll": 8, "ll128": 8, "simple": 64}[choice.protocol]
    if choice.algorithm == "ring" and choice.protocol == "ll":
        threshold *= graph.ranks
    threads = _THREADS[choice.protocol]
    if preferences is not None:
        threads = preferences.threads(choice.protocol, threads)
        threshold = preferences.bytes_per_thread(choice.algorithm, choice.protocol, threshold)
    channels = graph.channels if channels is None else channels
    while channels > 1 and size < channels * threads * threshold:
        channels -= 1
    return channels


def _steps(graph: Graph, operation: str) -> int:
    if operation not in RINGS:
        return graph.ranks
    return (2 if operation == "all_reduce" else 1) * (graph.ranks - 1)


def _bandwidth(graph: Graph, operation: str, algorithm: str, protocol: int) -> float:
    column, row = min(graph.nodes, 3) - 1, _ARCHITECTURES.index(graph.architecture)
    width = graph.channels * (graph.intra if graph.nodes <= 2 else graph.inter)
    ll_row = row if graph.nodes == 1 else {"intel": 0, "amd": 1}[graph.cpu]
    most = _LL_TOTAL[ll_row][column]
    if algorithm == "ring":
        bus = (min(most, width / 2), min(0.92 * width, graph.channels * _RING_LL128[row][column]), width)[protocol]
        return bus * graph.ranks / _steps(graph, operation)
    tree = min(0.92 * width, graph.channels * _TREE[row][column])
    rest = 7 / 9 if graph.nodes == 1 else 120 / 128
    bus = (min(tree / 3.8, most), min(tree * rest, graph.channels * _TREE_LL128[row][column]), tree)[protocol]
    if graph.nodes > 1 and graph.per_node == 1:  # both children at one GPU
        bus *= 0.85
    return bus / 2


def _latency(graph: Graph, operation: str, algorithm: str, protocol: int) -> float:
    base, inside = _BASE[algorithm][protocol], _HOP[graph.links][algorithm][protocol]
    network = _HOP["network"]["tree" if graph.per_node == 1 else algorithm][protocol]
    if algorithm == "tree":
        return base + 2 * ((graph.per_node - 1) * inside + int(math.log2(graph.nodes)) * network)
    if operation in ("broadcast", "reduce"):
        return base + inside
    post = {"intel": 1.0, "amd": 2.0}[graph.cpu] * (3 if PROTOCOLS[protocol] == "simple" else 1)
    crossings = (graph.nodes - 1) * (2 if operation == "all_reduce" else 1)
    hop = max(inside, post) if graph.nodes > 1 else inside
    return base + (_steps(graph, operation) - crossings) * hop + crossings * network


def _ring_penalty(graph: Graph, operation: str, protocol: str, size: int) -> float:
    if operation != "all_reduce" or protocol != "simple" or graph.nodes == 1:
        return 1.0
    if size / (graph.channels * graph.ranks) < 64:
        return 1.0
    return 1.9 if graph.architecture == "volta" else 1.4
