"""Hosts, the links between them, and which rank runs where."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

import networkx as nx

from simdist.cluster._devices import DeviceModel, DeviceModelSpec
from simdist.cluster._jitter import Jitter
from simdist.cluster._model_spec import ModelSpec
from simdist.cluster._nccl import NcclModel
from simdist.errors import TopologyError
from simdist.values import (
    PYTHON,
    WORLD_SIZE,
    Bandwidth,
    Dialect,
    Duration,
    Either,
    Finding,
    ListOf,
    Maybe,
    Number,
    Size,
    Spec,
    Text,
    Truth,
    Unfit,
    Whole,
    brief,
    findings_of,
    settle_fields,
)

__all__ = ["BUILD", "LOCAL_BANDWIDTH", "LOCAL_LATENCY_NS", "NETWORK_BANDWIDTH", "NETWORK_LATENCY_NS", "Cluster"]
__all__ += ["build"]

# One machine, Gloo over loopback TCP (measured on 2 cores: barrier of 2 ranks 0.23 ms, 64 MiB broadcast 17 ms).
LOCAL_LATENCY_NS = 50_000
LOCAL_BANDWIDTH = 4_000_000_000
# A 25 Gbit/s Ethernet and a kernel network stack on both sides.
NETWORK_LATENCY_NS = 80_000
NETWORK_BANDWIDTH = 3_125_000_000
DEVICE_MEMORY_BYTES = 80 << 30  # an H100's, or the larger A100's

# How many virtual devices a host has; "ranks": one for each rank on it. Torch's own guard, on which they rest, knows 8.
MOST_DEVICES = 8
_DEVICES = Either(("ranks",), Whole(least=0, most=MOST_DEVICES, why=", for torch's device guard knows no more"))


@dataclass(frozen=True, slots=True)
class _Graph(Spec):
    """An undirected graph of networkx, one link between two nodes."""

    def check(self, value: object, dialect: Dialect = PYTHON) -> Any:
        if not isinstance(value, nx.Graph) or value.is_directed() or value.is_multigraph():
            text = f"expected an undirected networkx.Graph without parallel links, found {dialect.found(value)}"
            raise Unfit([Finding((), text)])
        return value


_GRAPH = _Graph()
if TYPE_CHECKING:
    _StrGraph = nx.Graph[str]
else:  # the class itself takes no parameters
    _StrGraph = nx.Graph


@dataclass(frozen=True, eq=False)
class Cluster:
    """A graph whose nodes are host and switch names; each edge has `latency_ns` and `bandwidth` (bytes per second).

    `placement[r]` is the host of rank r. Messages between ranks of one host use `local_latency_ns` and
    `local_bandwidth`; all others take the path of least latency. In a reduction of at least `reduction_from_bytes` the
    data takes `reduction_slowdown` times as long on every link, and a message's latency is
    `reduction_latency_slowdown` times as long: data is not only moved but added up, by a core that has to be free.

    Messages that are on their way at the same time share the links. By default each rank has an interface of its own,
    out and in, as wide as the path that its message takes. With `shared_links` every edge is one wire each way for all
    messages over it, and a node with a `bandwidth` (a host's bus, a switch) takes no more than that in all. `ports[r]`
    is the node to which rank r is attached, if that is not its host: a GPU, for example.

    Each host has `devices_per_host` virtual CUDA devices of `device_memory_bytes` each, which its ranks find as
    "cuda:0" and so on; "ranks" is one for each rank on the host. By default there are none, unless the world's backend
    is "nccl": with devices, a program that checks for CUDA would take another path. Without them, it goes on as on a
    machine without CUDA, and the error of a program that requires CUDA explains how to have devices. Computations on a
    device take no time, unless there is a `device_model`, which may be the name of one: "a100", "h100". NCCL adds up
    and costs as one ring over all ranks does, or with an `nccl` model as NCCL would choose itself.

    With a `jitter` times vary under the policies that draw random numbers.

    Raises:
        TopologyError: a placement names no node, an edge lacks a cost, two hosts cannot reach each other, or an
            argument is invalid.

    Example:
        >>> cluster = build(8, hosts=2, latency_ns=20_000)
        >>> cluster.placement
        ('host0', 'host0', 'host0', 'host0', 'host1', 'host1', 'host1', 'host1')
    """

    graph: Annotated[_StrGraph, _GRAPH] = field(repr=False)
    placement: Annotated[tuple[str, ...], ListOf(Text(), of="hosts")]
    local_latency_ns: Annotated[int, Duration()] = LOCAL_LATENCY_NS
    local_bandwidth: Annotated[int, Bandwidth()] = LOCAL_BANDWIDTH
    reduction_slowdown: Annotated[float, Number(above=0)] = 1.0
    reduction_latency_slowdown: Annotated[float, Number(above=0)] = 1.0
    reduction_from_bytes: Annotated[int, Whole(least=0)] = 0
    made_by: Annotated[str, Text()] = field(default="", repr=False)  # the call of `build` or the like that made it
    shared_links: Annotated[bool, Truth()] = False
    ports: Annotated[tuple[str, ...], ListOf(Text(), of="nodes")] = ()
    devices_per_host: Annotated[int | str, _DEVICES] = 0
    device_memory_bytes: Annotated[int, Size()] = DEVICE_MEMORY_BYTES
    device_model: Annotated[DeviceModel | None, DeviceModelSpec()] = None
    nccl: Annotated[NcclModel | None, ModelSpec(NcclModel)] = None
    jitter: Annotated[Jitter | None, ModelSpec(Jitter)] = None

    def __post_init__(self) -> None:
        problems = settle_fields(self)
        if problems:  # nodes and links are checked when there is a graph, and a placement
            raise TopologyError("; ".join(problems))
        problems = [
            f"rank {r} is placed on {brief(h)}, no such host"
            for r, h in enumerate(self.placement)
            if h not in self.graph
        ]
        problems += [
            f"rank {r} is attached to {brief(port)}, no such node"
            for r, port in enumerate(self.ports)
            if port not in self.graph
        ]
        if self.ports and len(self.ports) != len(self.placement):
            problems.append(f"{len(self.ports)} ports for {len(self.placement)} ranks; there is one for each, or none")
        if self.devices_per_host == "ranks":
            problems += [
                f"{host} has {count} ranks, and a device for each would be too many; the most is {MOST_DEVICES}, "
                f"so spread them over {-(-count // MOST_DEVICES)} hosts or more, or share fewer devices"
                for host, count in Counter(self.placement).items()
                if count > MOST_DEVICES
            ]
        for a, b, data in self.graph.edges(data=True):
            for name in ("latency_ns", "bandwidth"):
                value = data.get(name)
                if not isinstance(value, int) or value < (1 if name == "bandwidth" else 0):
                    problems.append(f"link {a} - {b}: {name} is {brief(value)}, expected a positive integer")
        for node, data in self.graph.nodes(data=True):
            value = data.get("bandwidth", 1)
            if not isinstance(value, int) or value < 1:
                problems.append(f"node {node}: bandwidth is {brief(value)}, expected a positive integer")
        hosts = [host for host in dict.fromkeys(self.ends) if host in self.graph]
        problems += [
            f"no path from {hosts[0]} to {host}" for host in hosts[1:] if not nx.has_path(self.graph, hosts[0], host)
        ]
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

    def devices_on(self, host: str) -> int:
        """How many virtual devices `host` has."""
        return len(self.ranks_of(host)) if self.devices_per_host == "ranks" else int(self.devices_per_host)

    @property
    def ends(self) -> tuple[str, ...]:
        """The node of the graph at which each rank's messages begin and end."""
        return self.ports or self.placement

    def route(self, source: str, target: str) -> list[str]:
        """The nodes from one to another, both included, on the path of least latency."""
        nodes: list[str] = nx.shortest_path(self.graph, source, target, weight="latency_ns")
        return nodes

    def path(self, source: str, target: str) -> tuple[int, int]:
        """Latency in ns and bandwidth in bytes per second between two hosts, or ports."""
        nodes = [source] if source == target else self.route(source, target)
        widths = [self.graph.nodes[node]["bandwidth"] for node in nodes if "bandwidth" in self.graph.nodes[node]]
        if source == target:
            return self.local_latency_ns, min([self.local_bandwidth, *(widths if self.shared_links else ())])
        edges: Sequence[dict[str, int]] = [self.graph.edges[a, b] for a, b in itertools.pairwise(nodes)]
        latency_ns = sum(edge["latency_ns"] for edge in edges)
        return latency_ns, min([*(edge["bandwidth"] for edge in edges), *(widths if self.shared_links else ())])


# The types of `build`'s arguments, and the keys of [cluster] in a scenario.
BUILD: Mapping[str, Spec] = {
    "world_size": WORLD_SIZE,
    "hosts": Whole(least=1),
    "latency_ns": Maybe(Duration()),
    "bandwidth_bytes_per_s": Maybe(Bandwidth()),
    "local_latency_ns": Maybe(Duration()),
    "local_bandwidth_bytes_per_s": Maybe(Bandwidth()),
    "reduction_slowdown": Number(above=0),
    "reduction_latency_slowdown": Number(above=0),
    "reduction_from_bytes": Whole(least=0),
    "devices_per_host": _DEVICES,
    "device_memory_bytes": Size(),
    "device_model": DeviceModelSpec(),
    "nccl": ModelSpec(NcclModel),
    "jitter": ModelSpec(Jitter),
}


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
    devices_per_host: int | str = 0,
    device_memory_bytes: int = DEVICE_MEMORY_BYTES,
    device_model: DeviceModel | str | None = None,
    nccl: NcclModel | None = None,
    jitter: Jitter | None = None,
) -> Cluster:
    """`hosts` machines on one switch, with the ranks in blocks of equal size on them.

    Latency and bandwidth are those between two hosts; the `local_` ones those inside a host. For reductions and devices
    see `Cluster`; `simdist calibrate` measures all of them except those between hosts.

    Raises:
        TopologyError: the ranks do not fill the hosts evenly, or an argument is invalid.
    """
    given = {
        "hosts": hosts,
        "latency_ns": latency_ns,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        "local_latency_ns": local_latency_ns,
        "local_bandwidth_bytes_per_s": local_bandwidth_bytes_per_s,
        "reduction_slowdown": reduction_slowdown,
        "reduction_latency_slowdown": reduction_latency_slowdown,
        "reduction_from_bytes": reduction_from_bytes,
        "devices_per_host": devices_per_host,
        "device_memory_bytes": device_memory_bytes,
        "device_model": device_model,
        "nccl": nccl,
        "jitter": jitter,
    }
    said = {name: value for name, value in given.items() if value is not _DEFAULTS[name]}
    findings = [
        (name, finding)
        for name, value in {"world_size": world_size, **said}.items()
        for finding in findings_of(BUILD[name], value)
    ]
    if findings:
        raise TopologyError("; ".join(f"{name}: {finding.text}" for name, finding in findings))
    if world_size % hosts:
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
    words = [str(world_size), *(f"{name}={value!r}" for name, value in said.items())]
    return Cluster(
        graph,
        tuple(f"host{rank // each}" for rank in range(world_size)),
        LOCAL_LATENCY_NS if local_latency_ns is None else local_latency_ns,
        LOCAL_BANDWIDTH if local_bandwidth_bytes_per_s is None else local_bandwidth_bytes_per_s,
        reduction_slowdown,
        reduction_latency_slowdown,
        reduction_from_bytes,
        made_by=f"simdist.cluster.build({', '.join(words)})",
        devices_per_host=devices_per_host,
        device_memory_bytes=device_memory_bytes,
        device_model=cast("DeviceModel | None", device_model),  # `Cluster` looks up a name
        nccl=nccl,
        jitter=jitter,
    )


_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(build).parameters.items()}
