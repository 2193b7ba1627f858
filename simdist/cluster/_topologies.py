"""Ready-made clusters whose links are shared, each with its default constants.

| topology | hosts and ranks | what is shared |
|---|---|---|
| `one_host` | all ranks on one host | the host's bus |
| `switched` | hosts of equal size, one NIC each, on one switch | NICs, and the switch if it has a bandwidth |
| `rail_optimised` | hosts with a NIC for each GPU; GPU g of each on rail g | NVLink ports, NICs, spine |
| `fat_tree` | hosts with one NIC each on leaves, leaves on a core | NICs, and each leaf's links to the core |

A core or spine is one node: its switches spread traffic evenly, which equal-cost paths do only on average. In
`rail_optimised`, traffic to another rail first crosses NVLink inside the host, as NCCL's PXN does, because that is the
path of least latency; with `nvlink_latency_ns` above `spine_latency_ns` it goes through the spine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from simdist.cluster._graph import (
    BUILD,
    LOCAL_BANDWIDTH,
    LOCAL_LATENCY_NS,
    NETWORK_BANDWIDTH,
    NETWORK_LATENCY_NS,
    Cluster,
    build,
)
from simdist.errors import TopologyError
from simdist.values import WORLD_SIZE, Bandwidth, Duration, Maybe, Number, Spec, Whole, findings_of, guess_or_list

__all__ = ["TOPOLOGIES", "Topology", "fat_tree", "make", "one_host", "problems_of", "rail_optimised", "switched"]

# An H100 host: 18 NVLinks of 20.6 GB/s a GPU behind NVSwitches, 400 Gbit/s NICs of which 48.5 GB/s carry data (SimAI);
# 936 ns from GPU to GPU (ASTRA-sim's validated HGX-H100), 3 us through NICs and a switch, 1 us more through the spine.
NVLINK_LATENCY_NS, NVLINK_BANDWIDTH = 936, 370_800_000_000
RAIL_LATENCY_NS, RAIL_BANDWIDTH = 3_000, 48_500_000_000
HOP_LATENCY_NS = 1_000


@dataclass(frozen=True, slots=True)
class Topology:
    """A way to make a cluster for a number of ranks: the function, and the types of its settings."""

    make: Callable[..., Cluster]
    settings: Mapping[str, Spec]


def one_host(
    world_size: int,
    *,
    local_latency_ns: int = LOCAL_LATENCY_NS,
    local_bandwidth_bytes_per_s: int = LOCAL_BANDWIDTH,
    bus_bandwidth_bytes_per_s: int | None = None,
    **common: Any,
) -> Cluster:
    """All ranks on one host, each as wide as `local_bandwidth_bytes_per_s` and all together as wide as its bus.

    Raises:
        TopologyError: an argument is invalid.
    """
    said = _given("one_host", world_size, {**_arguments(locals()), **common})
    graph = _graph()
    _add_host(graph, "host0", bus_bandwidth_bytes_per_s)
    return _cluster("one_host", said, graph, ("host0",) * world_size)


def switched(
    world_size: int,
    *,
    hosts: int,
    latency_ns: int = NETWORK_LATENCY_NS,
    bandwidth_bytes_per_s: int = NETWORK_BANDWIDTH,
    switch_bandwidth_bytes_per_s: int | None = None,
    local_latency_ns: int = LOCAL_LATENCY_NS,
    local_bandwidth_bytes_per_s: int = LOCAL_BANDWIDTH,
    bus_bandwidth_bytes_per_s: int | None = None,
    **common: Any,
) -> Cluster:
    """`hosts` machines with one NIC each behind a switch: all ranks of a host share its NIC, each way.

    Raises:
        TopologyError: the ranks do not fill the hosts evenly, or an argument is invalid.
    """
    said = _given("switched", world_size, {**_arguments(locals()), **common})
    graph = _graph()
    _add_node(graph, "switch", "switch", switch_bandwidth_bytes_per_s)
    for host in range(hosts):
        _add_host(graph, f"host{host}", bus_bandwidth_bytes_per_s)
        _join(graph, f"host{host}", "switch", latency_ns, bandwidth_bytes_per_s, second=bool(host % 2))
    return _cluster("switched", said, graph, _blocks(world_size, hosts))


def rail_optimised(
    world_size: int,
    *,
    gpus_per_host: int = 8,
    nvlink_latency_ns: int = NVLINK_LATENCY_NS,
    nvlink_bandwidth_bytes_per_s: int = NVLINK_BANDWIDTH,
    latency_ns: int = RAIL_LATENCY_NS,
    bandwidth_bytes_per_s: int = RAIL_BANDWIDTH,
    spine_latency_ns: int = HOP_LATENCY_NS,
    oversubscription: float = 1.0,
    **common: Any,
) -> Cluster:
    """Hosts with a NIC for each of their GPUs; rank r is GPU r modulo `gpus_per_host`, whose NIC is on that rail.

    `latency_ns` and `bandwidth_bytes_per_s` are those between two hosts on one rail. A rail switch has as much
    bandwidth towards the spine as towards its NICs, divided by `oversubscription`.

    Raises:
        TopologyError: the ranks do not fill the hosts evenly, or an argument is invalid.
    """
    said = _given("rail_optimised", world_size, {**_arguments(locals()), **common})
    hosts = world_size // gpus_per_host
    graph = _graph()
    for host in range(hosts):
        _add_host(graph, f"host{host}", None)
        for gpu in range(gpus_per_host):
            port = f"host{host}/gpu{gpu}"
            _join(graph, port, f"host{host}", nvlink_latency_ns, nvlink_bandwidth_bytes_per_s, second=bool(gpu % 2))
            _join(graph, port, f"rail{gpu}", latency_ns, bandwidth_bytes_per_s, second=bool(host % 2))
    for gpu in range(gpus_per_host):
        width = max(1, round(hosts * bandwidth_bytes_per_s / oversubscription))
        _join(graph, f"rail{gpu}", "spine", spine_latency_ns, width, second=bool(gpu % 2))
    ports = tuple(f"host{rank // gpus_per_host}/gpu{rank % gpus_per_host}" for rank in range(world_size))
    return _cluster("rail_optimised", said, graph, _blocks(world_size, hosts), ports=ports)


def fat_tree(
    world_size: int,
    *,
    hosts: int,
    hosts_per_leaf: int,
    oversubscription: float = 1.0,
    latency_ns: int = NETWORK_LATENCY_NS,
    bandwidth_bytes_per_s: int = NETWORK_BANDWIDTH,
    core_latency_ns: int = HOP_LATENCY_NS,
    local_latency_ns: int = LOCAL_LATENCY_NS,
    local_bandwidth_bytes_per_s: int = LOCAL_BANDWIDTH,
    bus_bandwidth_bytes_per_s: int | None = None,
    **common: Any,
) -> Cluster:
    """Hosts with one NIC each, `hosts_per_leaf` on a leaf switch, and a core above the leaves.

    `latency_ns` is that between two hosts of a leaf; the path over the core takes `core_latency_ns` more. A leaf has as
    much bandwidth towards the core as its hosts' NICs together, divided by `oversubscription`.

    Raises:
        TopologyError: the ranks do not fill the hosts evenly, or an argument is invalid.
    """
    said = _given("fat_tree", world_size, {**_arguments(locals()), **common})
    graph = _graph()
    width = max(1, round(hosts_per_leaf * bandwidth_bytes_per_s / oversubscription))
    for host in range(hosts):
        leaf, place = divmod(host, hosts_per_leaf)
        _add_host(graph, f"host{host}", bus_bandwidth_bytes_per_s)
        _join(graph, f"host{host}", f"leaf{leaf}", latency_ns, bandwidth_bytes_per_s, second=bool(place % 2))
        if not place:
            _join(graph, f"leaf{leaf}", "core", core_latency_ns, width, second=bool(leaf % 2))
    return _cluster("fat_tree", said, graph, _blocks(world_size, hosts))


# The settings of every topology: reductions, devices, NCCL, and jitter.
_COMMON = {name: BUILD[name] for name in BUILD if name.startswith(("reduction_", "device", "nccl", "jitter"))}
_WIDTH, _SPAN = Bandwidth(), Duration()
_LOCAL = {"local_latency_ns": _SPAN, "local_bandwidth_bytes_per_s": _WIDTH, "bus_bandwidth_bytes_per_s": Maybe(_WIDTH)}
_NICS = {"latency_ns": _SPAN, "bandwidth_bytes_per_s": _WIDTH}
_HOSTS = {"hosts": BUILD["hosts"]}
_OVER = {"oversubscription": Number(above=0)}

# Each topology by its name in scenarios. "uniform" is `build`: every pair of hosts is alike, and nothing is shared.
TOPOLOGIES: Mapping[str, Topology] = {
    "uniform": Topology(build, {name: spec for name, spec in BUILD.items() if name != "world_size"}),
    "one_host": Topology(one_host, {**_LOCAL, **_COMMON}),
    "switched": Topology(
        switched, {**_HOSTS, **_NICS, "switch_bandwidth_bytes_per_s": Maybe(_WIDTH), **_LOCAL, **_COMMON}
    ),
    "rail_optimised": Topology(
        rail_optimised,
        {
            "gpus_per_host": Whole(least=1),
            "nvlink_latency_ns": _SPAN,
            "nvlink_bandwidth_bytes_per_s": _WIDTH,
            **_NICS,
            "spine_latency_ns": _SPAN,
            **_OVER,
            **_COMMON,
        },
    ),
    "fat_tree": Topology(
        fat_tree,
        {
            **_HOSTS,
            "hosts_per_leaf": Whole(least=1),
            **_OVER,
            **_NICS,
            "core_latency_ns": _SPAN,
            **_LOCAL,
            **_COMMON,
        },
    ),
}


_NEEDED = {"switched": ("hosts",), "fat_tree": ("hosts", "hosts_per_leaf")}


def make(world_size: int, *, topology: str = "uniform", **settings: object) -> Cluster:
    """Return a cluster of that topology, by the names that scenarios use.

    Raises:
        TopologyError: there is no such topology, or a setting is invalid.
    """
    if topology not in TOPOLOGIES:
        raise TopologyError(f"unknown topology {topology!r}{guess_or_list(topology, TOPOLOGIES)}")
    known = TOPOLOGIES[topology]
    problems = problems_of(topology, world_size, settings)
    if problems:
        raise TopologyError("; ".join(f"{name}: {text}" for name, text in problems))
    return known.make(world_size, **settings)


def problems_of(topology: str, world_size: int, settings: Mapping[str, object]) -> list[tuple[str, str]]:
    """The problems of a topology's settings, each with the setting's name, all at once."""
    specs = TOPOLOGIES[topology].settings
    problems = [
        (name, f"unknown setting of topology {topology!r}{guess_or_list(name, specs)}")
        for name in settings
        if name not in specs
    ]
    problems += [
        (name, f"missing; topology {topology!r} has no default for it")
        for name in _NEEDED.get(topology, ())
        if name not in settings
    ]
    checked = {"world_size": world_size, **{name: settings[name] for name in settings if name in specs}}
    problems += [
        (name, finding.text)
        for name, value in checked.items()
        for finding in findings_of(WORLD_SIZE if name == "world_size" else specs[name], value)
    ]
    return problems


# -- parts -----------------------------------------------------------------------------------------------------------


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("world_size", "common")}


def _given(topology: str, world_size: int, said: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a topology's function, if they are valid and fit together."""
    problems = problems_of(topology, world_size, said)
    if problems:
        raise TopologyError("; ".join(f"{name}: {text}" for name, text in problems))
    if "hosts" in said and world_size % said["hosts"]:
        raise TopologyError(f"{world_size} ranks do not fill {said['hosts']} hosts evenly")
    if "gpus_per_host" in said and world_size % said["gpus_per_host"]:
        raise TopologyError(f"{world_size} ranks do not fill hosts of {said['gpus_per_host']} GPUs evenly")
    return {"world_size": world_size, **said}


def _graph() -> Any:
    return nx.Graph()


def _add_node(graph: Any, name: str, kind: str, bandwidth: int | None) -> None:
    graph.add_node(name, kind=kind)
    if bandwidth is not None:
        graph.nodes[name]["bandwidth"] = bandwidth


def _add_host(graph: Any, name: str, bus_bandwidth: int | None) -> None:
    _add_node(graph, name, "host", bus_bandwidth)


def _join(graph: Any, a: str, b: str, latency_ns: int, bandwidth: int, *, second: bool) -> None:
    """Add one of the two links that share a latency; a first and a second one lose nothing to rounding."""
    graph.add_edge(a, b, latency_ns=latency_ns // 2 if second else latency_ns - latency_ns // 2, bandwidth=bandwidth)


def _blocks(world_size: int, hosts: int) -> tuple[str, ...]:
    each = world_size // hosts
    return tuple(f"host{rank // each}" for rank in range(world_size))


def _cluster(
    topology: str, said: Mapping[str, Any], graph: Any, placement: tuple[str, ...], ports: tuple[str, ...] = ()
) -> Cluster:
    words = [f"{name}={value!r}" for name, value in said.items() if name != "world_size"]
    return Cluster(
        graph,
        placement,
        said.get("local_latency_ns", LOCAL_LATENCY_NS),
        said.get("local_bandwidth_bytes_per_s", LOCAL_BANDWIDTH),
        **{name: said[name] for name in _COMMON if name in said},
        made_by=f"simdist.cluster.{topology}({', '.join([str(said['world_size']), *words])})",
        shared_links=True,
        ports=ports,
    )
