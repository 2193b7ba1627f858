from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

import simdist
from simdist.cluster import Cluster, Network, Path, build
from simdist.errors import TopologyError


def test_one_host_holds_every_rank_by_default() -> None:
    cluster = build(4)

    assert cluster.placement == ("host0",) * 4
    assert cluster.hosts == ("host0",)
    assert cluster.world_size == 4


def test_ranks_fill_hosts_in_blocks() -> None:
    cluster = build(6, hosts=3)

    assert cluster.placement == ("host0", "host0", "host1", "host1", "host2", "host2")
    assert [cluster.ranks_of(host) for host in cluster.hosts] == [[0, 1], [2, 3], [4, 5]]
    assert cluster.ranks_of("switch") == []


def test_a_message_inside_a_host_uses_the_local_costs() -> None:
    cluster = build(4, hosts=2, local_latency_ns=7_000, local_bandwidth_bytes_per_s=2_000_000_000)

    assert cluster.path("host1", "host1") == (7_000, 2_000_000_000)
    assert Network(cluster).path(2, 3) == Path(7_000, 0.5)


@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize("latency_ns", [0, 2, 20_000, 80_000])
def test_the_latency_given_is_the_latency_between_any_two_hosts(hosts: int, latency_ns: int) -> None:
    cluster = build(hosts, hosts=hosts, latency_ns=latency_ns, bandwidth_bytes_per_s=1_000)

    paths = {cluster.path(a, b) for a in cluster.hosts for b in cluster.hosts if a != b}

    assert paths == {(latency_ns, 1_000)}


def test_an_odd_latency_between_two_hosts_loses_nothing_to_rounding() -> None:
    assert build(2, hosts=2, latency_ns=20_001).path("host0", "host1")[0] == 20_001


def test_a_path_adds_latencies_and_takes_the_narrowest_bandwidth() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "s", latency_ns=10, bandwidth=500)
    graph.add_edge("s", "t", latency_ns=20, bandwidth=50)
    graph.add_edge("t", "b", latency_ns=30, bandwidth=5_000)
    cluster = Cluster(graph, ("a", "b"))

    assert cluster.path("a", "b") == (60, 50)
    assert cluster.path("b", "a") == (60, 50)


def test_a_path_is_the_one_of_least_latency_even_if_it_has_more_hops() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "b", latency_ns=100, bandwidth=9)
    graph.add_edge("a", "s", latency_ns=10, bandwidth=3)
    graph.add_edge("s", "b", latency_ns=10, bandwidth=4)

    assert Cluster(graph, ("a", "b")).path("a", "b") == (20, 3)


def test_hosts_come_in_the_order_of_their_first_rank() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("x", "y", latency_ns=1, bandwidth=1)
    graph.add_edge("y", "z", latency_ns=1, bandwidth=1)
    cluster = Cluster(graph, ("z", "x", "z", "y"))

    assert cluster.hosts == ("z", "x", "y")
    assert cluster.ranks_of("z") == [0, 2]


@pytest.mark.parametrize(
    ("world_size", "hosts", "problem"),
    [
        (5, 2, "5 ranks do not fill 2 hosts evenly"),
        (0, 1, "world_size: 0 is too small; the least is 1"),
        (4, 0, "hosts: 0 is too small; the least is 1"),
    ],
)
def test_ranks_that_do_not_fill_the_hosts_are_refused(world_size: int, hosts: int, problem: str) -> None:
    with pytest.raises(TopologyError) as caught:
        build(world_size, hosts=hosts)

    assert str(caught.value) == problem


def test_a_placement_on_no_host_is_refused_by_name() -> None:
    with pytest.raises(TopologyError) as caught:
        Cluster(build(2).graph, ("host0", "host7"))

    assert str(caught.value) == "rank 1 is placed on 'host7', no such host"


def test_a_host_without_a_path_is_refused() -> None:
    graph: Any = nx.Graph()
    graph.add_nodes_from(["a", "b"])

    with pytest.raises(TopologyError) as caught:
        Cluster(graph, ("a", "b"))

    assert str(caught.value) == "no path from a to b"


@pytest.mark.parametrize(
    ("costs", "problem"),
    [
        ({"latency_ns": -1, "bandwidth": 1}, "link a - b: latency_ns is -1, expected a positive integer"),
        ({"latency_ns": 1.5, "bandwidth": 1}, "link a - b: latency_ns is 1.5, expected a positive integer"),
        ({"latency_ns": 1, "bandwidth": 0}, "link a - b: bandwidth is 0, expected a positive integer"),
        ({"latency_ns": 1}, "link a - b: bandwidth is None, expected a positive integer"),
    ],
)
def test_a_link_without_a_proper_cost_is_refused(costs: dict[str, float], problem: str) -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "b", **costs)

    with pytest.raises(TopologyError) as caught:
        Cluster(graph, ("a", "b"))

    assert str(caught.value) == problem


def test_local_costs_must_make_sense() -> None:
    with pytest.raises(TopologyError, match=r"^local_bandwidth_bytes_per_s: 0 is too small; the least is 1$"):
        build(2, local_bandwidth_bytes_per_s=0)
    with pytest.raises(TopologyError, match=r"^local_latency_ns: -1 ns lies before the start$"):
        build(2, local_latency_ns=-1)


def test_all_problems_are_reported_at_once() -> None:
    graph: Any = nx.Graph()
    graph.add_edge("a", "b", latency_ns=1)

    with pytest.raises(TopologyError) as caught:
        Cluster(graph, ("a", "c", "d"))

    assert str(caught.value).count(";") == 2
    with pytest.raises(
        TopologyError, match=r"^hosts: expected a whole number, found the number 1\.5; latency_ns: expected"
    ):
        build(4, hosts=1.5, latency_ns="1ms")  # type: ignore[arg-type]


def test_a_cluster_for_another_number_of_ranks_is_refused_by_the_world() -> None:
    with pytest.raises(TopologyError) as caught:
        simdist.run(lambda: None, world_size=3, cluster=build(4))

    assert str(caught.value) == "the cluster places 4 ranks, the world has 3"


def test_devices_are_none_a_number_or_one_for_each_rank() -> None:
    assert build(4).devices_on("host0") == 0
    assert build(4, hosts=2, devices_per_host=8).devices_on("host1") == 8
    assert build(6, hosts=2, devices_per_host="ranks").devices_on("host1") == 3
    assert build(2, devices_per_host=2).device_memory_bytes == 80 << 30
    assert "devices_per_host=2" in build(2, devices_per_host=2).made_by
