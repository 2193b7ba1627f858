"""NCCL's own choice of algorithms by its tuning model, for a cluster's links: order of additions, and cost.

A group with the same number of ranks on each host has a graph of channels. The bandwidth of each channel is the fastest
of NCCL's speeds that the links allow. An all-reduce goes around the ring or up and down two trees, in the protocol that
takes the least time. Its bytes load the links of all channels, which use the NICs of a host in turn.

Rings go from rank to rank, hosts in the order of the ranks. Trees have a chain in each host: its first GPU is connected
to the parent and the second child, its second GPU to the first child (graph/connect.cc, trees.cc). In doubt: real
channels begin with different GPUs of a host. Here this applies to the load on the links, but not to the order of
additions, which only the topology's search would show.

Circle of imports: this algorithm derives from the plain one, which makes it for a cluster with a model of NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simdist.c10d.backends.nccl.kernels import _folds
from simdist.c10d.backends.nccl.kernels._algorithm import Calls, NcclAlgorithm, brought, operands
from simdist.c10d.backends.nccl.kernels._collisions import Plan
from simdist.c10d.backends.nccl.kernels._folds import Tree
from simdist.c10d.backends.nccl.kernels._preferences import Preferences
from simdist.c10d.backends.nccl.kernels._tuning import Choice, Graph, choose, shrunk_channels
from simdist.c10d.calls import KERNELS
from simdist.c10d.calls._operation import Operation
from simdist.cluster import Cluster, NcclModel
from simdist.errors import UnsupportedError

__all__ = ["TunedAlgorithm", "graph_of", "trees_of"]

Tensor = torch.Tensor
# GB/s that the search for a graph tries for a channel (graph/search.cc), the fastest first.
_LOCAL_SPEEDS = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
_SPEEDS = (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.24, 0.12)
_CHANNELS = {"nvlink": 12, "pci": 2}


class TunedAlgorithm(NcclAlgorithm):
    """The algorithm of one group."""

    def __init__(self, cluster: Cluster, model: NcclModel, ranks: Sequence[int]) -> None:
        self._model = model
        self.graph = graph_of(cluster, model, ranks)
        self._trees = trees_of(self.graph)
        self._preferences: Preferences | None = None
        self._first = -1  # the rank whose preferences these are

    def heed(self, rank: int, preferences: Preferences | None) -> None:
        """Set the preferences from a rank's environment, which must be the same on all ranks.

        Raises:
            UnsupportedError: the preferences of this rank differ.
        """
        if self._first < 0:
            self._first, self._preferences = rank, preferences
        elif preferences != self._preferences:
            raise UnsupportedError(
                "NCCL's variables (NCCL_ALGO, NCCL_PROTO, numbers of channels and threads, buffers) are others on rank "
                f"{rank} than on rank {self._first} of a group: real ones would hang, or mix data up; give all ranks "
                "the same"
            )

    def choice(self, operation: Operation) -> Choice:
        """Return the algorithm and protocol that NCCL uses for an operation."""
        name = "all_reduce" if operation.name == "barrier" else operation.name
        size = operation.size * (self.graph.ranks if name == "all_gather" else 1)
        model = self._model
        return choose(*(self.graph, name, size, self._preferences), algorithm=model.algorithm, protocol=model.protocol)

    def channels(self, operation: Operation) -> int:
        """Return over how many channels an operation's bytes are spread."""
        size = operation.size * (self.graph.ranks if operation.name == "all_gather" else 1)
        channels = self.graph.channels
        if self._preferences is not None:
            channels = self._preferences.channels(channels)
        return shrunk_channels(self.graph, self.choice(operation), size, channels, self._preferences)

    def costs_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> tuple[int, int]:
        """Return the model's estimate; operations that it does not cover cost what the cluster's links cost."""
        if operation.name not in KERNELS or ranks == 1:
            return super().costs_ns(operation, ranks, latency_ns, byte_ns)
        chosen = self.choice(operation)
        whole = round(chosen.time_us * 1000)
        return whole, max(0, whole - round(chosen.latency_us * 1000))

    def traffic(self, operation: Operation, ranks: int) -> Sequence[tuple[int, int, float]]:
        """Return the bytes that ranks send each other, on all channels."""
        if operation.name not in KERNELS or ranks == 1:
            return super().traffic(operation, ranks)
        here, nodes = self.graph.per_node, self.graph.nodes
        if self.choice(operation).algorithm == "tree":
            edges = [(child, rank) for _, tree in self._trees for rank in range(ranks) for child in tree[rank]]
            part = operation.size / 2 / here
            # Each channel begins with another GPU of a host.
            turned = [(_turned(a, first, here), _turned(b, first, here)) for first in range(here) for a, b in edges]
            return [each for a, b in turned for each in ((a, b, part), (b, a, part))]
        (_, _, amount), *_ = super().traffic(operation, ranks)
        if nodes == 1:
            return [(rank, (rank + 1) % ranks, amount) for rank in range(ranks)]
        loads: list[tuple[int, int, float]] = []
        for first in range(here):  # the GPU at which a channel enters and leaves a host
            for node in range(nodes):
                base, following = node * here, (node + 1) % nodes * here
                loads += [
                    (base + (first + step) % here, base + (first + step + 1) % here, amount / here)
                    for step in range(here if here > 1 else 0)
                ]
                loads.append((base + first, following + first, amount / here))
        return loads

    def plans(self, operations: Sequence[Operation]) -> list[Plan]:
        """Return a plan for each of several calls that do not match: each rank chooses by its own size."""
        return [self._plan(operation) for operation in operations]

    def _plan(self, operation: Operation) -> Plan:
        if operation.name not in KERNELS:
            return Plan("simple")
        chosen, preferences = self.choice(operation), self._preferences
        loop_bytes = 0 if preferences is None else preferences.loop_bytes(chosen.protocol, 0)
        trees = self._trees if chosen.algorithm == "tree" else ()
        return Plan(chosen.protocol, self.channels(operation), loop_bytes, trees)

    def _all_reduce(self, calls: Calls) -> list[Tensor]:
        datas = brought(calls, Tensor)
        operation = calls[0][0]
        chosen, channels = self.choice(operation), self.channels(operation)
        given = operands(calls, datas)
        if chosen.algorithm == "tree":
            _folds.tree_all_reduce(given, self._trees, channels)
        else:
            loop_bytes = _folds.LOOP_BYTES[chosen.protocol]
            if self._preferences is not None:
                loop_bytes = self._preferences.loop_bytes(chosen.protocol, loop_bytes)
            _folds.all_reduce(given, channels, loop_bytes)
        return datas[:1]


def _turned(rank: int, by: int, here: int) -> int:
    return rank - rank % here + (rank + by) % here


def graph_of(cluster: Cluster, model: NcclModel, ranks: Sequence[int]) -> Graph:
    """Return the channels between some ranks of the world.

    Raises:
        UnsupportedError: the hosts have different numbers of these ranks.
    """
    hosts: dict[str, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(cluster.placement[rank], []).append(rank)
    if len({len(each) for each in hosts.values()}) != 1:
        counts = ", ".join(f"{len(each)} on {host}" for host, each in hosts.items())
        raise UnsupportedError(
            f"NCCL's tuning model wants as many ranks of a group on each host, and there are {counts}; leave the nccl "
            "model out of the cluster: one ring over all ranks then says what a group costs"
        )
    groups = list(hosts.values())
    here, nodes, ends = len(groups[0]), len(groups), cluster.ends
    channels = model.channels or (_CHANNELS[model.links] if nodes == 1 else here if cluster.ports else 1)
    local = model.local_bandwidth_bytes_per_s
    if local is None:
        first, *others = groups[0]
        pair = ends[first], ends[others[0] if others else first]
        local = _speed(cluster.path(*pair)[1] / channels, _LOCAL_SPEEDS)
    wide = model.bandwidth_bytes_per_s
    if wide is None and nodes > 1:
        nics = here if cluster.ports else 1
        total = cluster.path(ends[groups[0][0]], ends[groups[1][0]])[1] * nics
        wide = _speed(total / channels, _SPEEDS)
    return Graph(
        ranks=len(ranks),
        nodes=nodes,
        channels=channels,
        intra=local / 1e9 if here > 1 or nodes == 1 else (wide or local) / 1e9,
        inter=(wide or local) / 1e9,
        architecture=model.gpu,
        links=model.links,
        cpu=model.cpu,
    )


def _speed(bytes_per_s: float, known: Sequence[float]) -> int:
    """Return the fastest known speed up to `bytes_per_s`; `bytes_per_s` if that is slower than all of them."""
    return round(next((speed * 1e9 for speed in known if speed * 1e9 <= bytes_per_s), bytes_per_s))


def trees_of(graph: Graph) -> list[tuple[int, Tree]]:
    """Return both trees, each with its root."""
    here, nodes = graph.per_node, graph.nodes
    made: list[tuple[int, Tree]] = []
    for second in (False, True):
        children: list[list[int]] = [[rank + 1] if rank % here < here - 1 else [] for rank in range(graph.ranks)]
        for node in range(nodes):
            first_child, second_child = _children(node, nodes, second=second)
            for child, gpu in ((first_child, min(1, here - 1)), (second_child, 0)):
                if child >= 0:
                    children[node * here + gpu].append(child * here)
        root = 0 if not second or nodes == 1 else 1 if nodes % 2 else nodes - 1
        made.append((root * here, children))
    return made


def _children(node: int, nodes: int, *, second: bool) -> tuple[int, int]:
    """Return a node's children, -1 for none: in a tree of alternating leaves and nodes, or its shift or mirror."""
    if not second or nodes == 1:
        return _below(node, nodes)
    if nodes % 2:
        below = _below((node - 1) % nodes, nodes)
        return _shifted(below[0], nodes), _shifted(below[1], nodes)
    below = _below(nodes - 1 - node, nodes)
    return tuple(-1 if each < 0 else nodes - 1 - each for each in below)  # type: ignore[return-value]  # two of them


def _shifted(node: int, nodes: int) -> int:
    return -1 if node < 0 else (node + 1) % nodes


def _below(node: int, nodes: int) -> tuple[int, int]:
    bit = 1
    while bit < nodes and not bit & node:
        bit <<= 1
    if node == 0:
        return -1, bit >> 1 if nodes > 1 else -1
    low = bit >> 1
    if not low:
        return -1, -1
    step, right = low, node + low
    while right >= nodes and step:
        right, step = (node + step, step >> 1) if step else (-1, 0)
    return node - low, right if right < nodes else -1
