"""Ready-made topologies: which flows share links, seen by their times."""

from __future__ import annotations

import pytest

from simdist.cluster import TOPOLOGIES, Cluster, Network, fat_tree, make, one_host, rail_optimised, switched
from simdist.errors import TopologyError
from tests.cluster.wire_clock import WireClock

GB = 1_000_000_000  # one nanosecond a byte
KB = 1_000


def ends(cluster: Cluster, *pairs: tuple[int, int], size: int = 4 * KB) -> list[int]:
    """Return when messages that leave together are through."""
    clock = WireClock()
    network = Network(cluster, clock)
    flows = []
    for source, target in pairs:
        byte_ns = network.path(source, target).byte_ns
        traffic = [(source, target, float(size))]

        def load(traffic: list[tuple[int, int, float]] = traffic) -> object:
            return network.load(traffic)

        flows.append(network.begin(0, round(size * byte_ns), byte_ns, load, lambda: None))  # type: ignore[arg-type]
    clock.run()
    return [flow.end_ns for flow in flows]


def latency_ns(cluster: Cluster, source: int, target: int) -> int:
    return Network(cluster).path(source, target).latency_ns


def test_ranks_of_one_host_share_its_bus() -> None:
    cluster = one_host(4, local_latency_ns=7, local_bandwidth_bytes_per_s=GB, bus_bandwidth_bytes_per_s=GB)

    assert cluster.placement == ("host0",) * 4
    assert latency_ns(cluster, 0, 3) == 7
    assert ends(cluster, (0, 1)) == [4 * KB]
    assert ends(cluster, (0, 1), (2, 3)) == [8 * KB, 8 * KB]


def test_a_host_without_a_bus_of_its_own_only_has_the_ranks_widths() -> None:
    cluster = one_host(4, local_bandwidth_bytes_per_s=GB)

    assert ends(cluster, (0, 1), (2, 3)) == [4 * KB, 4 * KB]
    assert ends(cluster, (0, 1), (0, 2)) == [8 * KB, 8 * KB]


def test_ranks_of_a_host_share_its_nic_but_not_their_own_memory() -> None:
    cluster = switched(4, hosts=2, latency_ns=21, bandwidth_bytes_per_s=GB, local_bandwidth_bytes_per_s=4 * GB)

    assert cluster.placement == ("host0", "host0", "host1", "host1")
    assert latency_ns(cluster, 0, 2) == 21
    assert ends(cluster, (0, 2)) == [4 * KB]
    assert ends(cluster, (0, 2), (1, 3)) == [8 * KB, 8 * KB]
    assert ends(cluster, (0, 2), (0, 1)) == [4 * KB, KB]
    assert ends(cluster, (0, 2), (2, 0)) == [4 * KB, 4 * KB]


def test_a_switch_may_be_narrower_than_its_ports() -> None:
    def cluster(width: int | None) -> Cluster:
        return switched(4, hosts=4, bandwidth_bytes_per_s=GB, switch_bandwidth_bytes_per_s=width)

    assert ends(cluster(None), (0, 1), (2, 3)) == [4 * KB, 4 * KB]
    assert ends(cluster(GB), (0, 1), (2, 3)) == [8 * KB, 8 * KB]


def test_gpus_of_one_rail_meet_on_its_switch_and_others_go_by_nvlink_first() -> None:
    cluster = rail_optimised(
        16, nvlink_latency_ns=100, latency_ns=1_000, spine_latency_ns=5_000, nvlink_bandwidth_bytes_per_s=4 * GB
    )

    assert cluster.hosts == ("host0", "host1")
    assert cluster.ranks_of("host1") == list(range(8, 16))
    assert cluster.ports[11] == "host1/gpu3"
    assert latency_ns(cluster, 3, 11) == 1_000
    assert latency_ns(cluster, 3, 5) == 100
    assert latency_ns(cluster, 3, 12) == 1_100
    assert "host0" in cluster.route("host0/gpu3", "host1/gpu4")


def test_each_gpu_of_a_rail_optimised_host_has_a_nic_of_its_own() -> None:
    cluster = rail_optimised(16, bandwidth_bytes_per_s=GB, nvlink_bandwidth_bytes_per_s=8 * GB)

    assert ends(cluster, *((gpu, 8 + gpu) for gpu in range(8))) == [4 * KB] * 8
    assert ends(cluster, (0, 8), (1, 8)) == [8 * KB, 8 * KB]  # into one NIC, one of them over NVLink and its rail


def test_the_spine_is_used_when_it_is_nearer_and_is_as_wide_as_is_said() -> None:
    def cluster(oversubscription: float) -> Cluster:
        return rail_optimised(
            16,
            bandwidth_bytes_per_s=GB,
            nvlink_latency_ns=50_000,
            spine_latency_ns=10,
            oversubscription=oversubscription,
        )

    assert "spine" in cluster(1.0).route("host0/gpu3", "host1/gpu4")
    assert ends(cluster(1.0), (3, 12), (11, 4)) == [4 * KB, 4 * KB]
    assert ends(cluster(4.0), (3, 12), (11, 4)) == [16 * KB, 16 * KB]  # two NICs' worth through half of one


def test_leaves_of_a_fat_tree_share_what_they_have_towards_the_core() -> None:
    def cluster(oversubscription: float) -> Cluster:
        return fat_tree(
            8,
            hosts=8,
            hosts_per_leaf=4,
            oversubscription=oversubscription,
            latency_ns=100,
            core_latency_ns=30,
            bandwidth_bytes_per_s=GB,
        )

    across = [(host, host + 4) for host in range(4)]
    assert latency_ns(cluster(1.0), 0, 1) == 100
    assert latency_ns(cluster(1.0), 0, 7) == 130
    assert ends(cluster(1.0), *across) == [4 * KB] * 4
    assert ends(cluster(2.0), *across) == [8 * KB] * 4
    assert ends(cluster(2.0), (0, 1), (2, 3), (4, 5)) == [4 * KB] * 3  # inside the leaves no link is too narrow


def test_the_call_that_makes_it_can_be_repeated() -> None:
    cluster = make(4, topology="switched", hosts=2, latency_ns=5)

    assert cluster.made_by.startswith("simdist.cluster.switched(4, hosts=2, latency_ns=5, ")
    again = eval(cluster.made_by, {"simdist": __import__("simdist.cluster")})
    assert again.path("host0", "host1") == cluster.path("host0", "host1")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_takes_a_calibrated_reduction(topology: str) -> None:
    sizes = {"switched": {"hosts": 2}, "fat_tree": {"hosts": 2, "hosts_per_leaf": 1}}.get(topology, {})

    cluster = make(8, topology=topology, reduction_slowdown=2.0, reduction_from_bytes=64, **sizes)

    assert (cluster.world_size, cluster.reduction_slowdown, cluster.reduction_from_bytes) == (8, 2.0, 64)
    assert cluster.shared_links == (topology != "uniform")


@pytest.mark.parametrize(
    ("world_size", "settings", "problem"),
    [
        (4, {"topology": "switchd"}, "unknown topology 'switchd'; did you mean 'switched'?"),
        (4, {"topology": "switched"}, "hosts: missing; topology 'switched' has no default for it"),
        (5, {"topology": "switched", "hosts": 2}, "5 ranks do not fill 2 hosts evenly"),
        (12, {"topology": "rail_optimised"}, "12 ranks do not fill hosts of 8 GPUs evenly"),
        (
            4,
            {"topology": "fat_tree", "hosts": 0, "oversubscription": -1, "host_per_leaf": 2},
            "host_per_leaf: unknown setting of topology 'fat_tree'; did you mean 'hosts_per_leaf'?; hosts_per_leaf: "
            "missing; topology 'fat_tree' has no default for it; hosts: 0 is too small; the least is 1; "
            "oversubscription: -1 is too small; it must be greater than 0",
        ),
    ],
)
def test_what_does_not_fit_a_topology_is_reported_all_at_once(
    world_size: int, settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        make(world_size, **settings)  # type: ignore[arg-type]

    assert str(caught.value) == problem


def test_a_port_that_is_no_node_is_refused() -> None:
    plain = one_host(2)

    with pytest.raises(TopologyError, match=r"^rank 1 is attached to 'gpu1', no such node$"):
        Cluster(plain.graph, plain.placement, ports=("host0", "gpu1"))
    with pytest.raises(TopologyError, match=r"^1 ports for 2 ranks; there is one for each, or none$"):
        Cluster(plain.graph, plain.placement, ports=("host0",))


def test_a_node_without_a_proper_bandwidth_is_refused() -> None:
    plain = one_host(2)
    plain.graph.nodes["host0"]["bandwidth"] = 0

    with pytest.raises(TopologyError, match=r"^node host0: bandwidth is 0, expected a positive integer$"):
        Cluster(plain.graph, plain.placement)
