"""NCCL's tuning model: its choices and times, compared with ones worked out by hand, its trees, sums and costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl.kernels._tuned import graph_of, trees_of
from simdist.c10d.backends.nccl.kernels._tuning import Graph, choose, estimates, shrunk_channels
from simdist.cluster import Cluster, NcclModel, build, rail_optimised
from simdist.errors import TopologyError, UnsupportedError
from simdist.process import current_process
from tests.c10d.nccl.test_numerics import folded, inputs
from tests.c10d.nccl.worlds import join, results

ONE_H100 = Graph(ranks=8, nodes=1, channels=12, intra=30, inter=30)
FOUR_H100 = Graph(ranks=32, nodes=4, channels=8, intra=48, inter=48)
ONE_A100 = Graph(ranks=8, nodes=1, channels=12, intra=20, inter=20, architecture="ampere")
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("graph", "ring", "tree"),
    [
        (
            ONE_H100,
            [(15.00, 80.57), (40.60, 189.26), (56.00, 205.71)],
            [(15.20, 43.58), (31.50, 128.80), (64.40, 165.60)],
        ),
        (
            FOUR_H100,
            [(78.8, 10.53), (144.4, 151.54), (282.8, 198.19)],
            [(35.2, 10.20), (65.5, 116.0), (120.4, 144.0)],
        ),
    ],
    ids=["one host of H100s", "four hosts of H100s"],
)
def test_latencies_and_bandwidths_are_those_of_the_published_graphs(graph: Graph, ring: Any, tree: Any) -> None:
    found = {(each.algorithm, each.protocol): each for each in estimates(graph, "all_reduce", KIB)}

    for algorithm, expected in (("ring", ring), ("tree", tree)):
        for protocol, (latency, bandwidth) in zip(("ll", "ll128", "simple"), expected, strict=True):
            choice = found[algorithm, protocol]
            assert choice.latency_us == pytest.approx(latency, abs=0.01)
            assert choice.bandwidth == pytest.approx(bandwidth, abs=0.01)


@pytest.mark.parametrize(
    ("graph", "size", "algorithm", "protocol", "time_us"),
    [
        (ONE_H100, KIB, "ring", "ll", 15.0),
        (ONE_H100, MIB, "ring", "ll", 28.0),
        (ONE_H100, 16 * MIB, "ring", "ll128", 129.2),
        (ONE_H100, GIB, "ring", "simple", 5275.6),
        (FOUR_H100, KIB, "tree", "ll", 35.3),
        (FOUR_H100, MIB, "tree", "ll128", 80.6),
        (FOUR_H100, 256 * MIB, "ring", "simple", 1750.3),
        (FOUR_H100, GIB, "ring", "simple", 5813.6),
        (ONE_A100, MIB, "ring", "ll", 35.9),
        (ONE_A100, GIB, "ring", "simple", 7885.4),
    ],
)
def test_the_choice_is_nccls_own(graph: Graph, size: int, algorithm: str, protocol: str, time_us: float) -> None:
    chosen = choose(graph, "all_reduce", size)

    assert (chosen.algorithm, chosen.protocol) == (algorithm, protocol)
    assert chosen.time_us == pytest.approx(time_us, abs=0.06)


def test_what_is_asked_for_is_taken_and_trees_are_for_all_reduces_only() -> None:
    forced = choose(ONE_H100, "all_reduce", GIB, algorithm="tree", protocol="ll")
    gathered = choose(ONE_H100, "all_gather", GIB, algorithm="tree")
    without = choose(Graph(ranks=8, nodes=1, channels=2, intra=12, inter=12, links="pci"), "all_reduce", 16 * MIB)

    assert (forced.algorithm, forced.protocol) == ("tree", "ll")
    assert gathered.algorithm == "ring"
    assert without.protocol != "ll128"  # ll128 needs NVLink


def test_small_operations_take_fewer_channels() -> None:
    found = [shrunk_channels(ONE_H100, choose(ONE_H100, "all_reduce", size), size) for size in (8, 64 * KIB, MIB, GIB)]

    assert found == [1, 2, 12, 12]


def test_the_graph_of_a_cluster_is_the_published_one() -> None:
    def graph(cluster: Cluster, **model: Any) -> Graph:
        return graph_of(cluster, NcclModel(**model), range(cluster.world_size))

    assert graph(rail_optimised(8)) == ONE_H100
    assert graph(rail_optimised(32)) == Graph(ranks=32, nodes=4, channels=8, intra=40, inter=48)
    assert graph(build(4, hosts=2)).inter == 3.0  # an Ethernet of 25 Gbit/s
    assert graph(build(2), channels=1, local_bandwidth_bytes_per_s=7 * 10**9).intra == 7.0


def parent_of(node: int, nodes: int) -> int:
    """Return the node with its lowest bit cleared, and the next bit set unless that is out of bounds."""
    low = node & -node
    above = (node ^ low) | low << 1
    return above if above < nodes else node ^ low


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 11, 14])
@pytest.mark.parametrize("here", [1, 2, 4])
def test_both_trees_reach_everyone_once(nodes: int, here: int) -> None:
    graph = Graph(ranks=nodes * here, nodes=nodes, channels=2, intra=20, inter=12)

    (root, first), (other_root, second) = trees_of(graph)

    for tree, top in ((first, root), (second, other_root)):
        below = [child for children in tree for child in children]
        assert sorted([*below, top]) == list(range(graph.ranks))
        assert max(map(len, tree)) <= 3
    parents = {child: rank for rank, children in enumerate(first) for child in children}
    for node in range(1, nodes):
        assert parents[node * here] // here == parent_of(node, nodes)
    mirrored = {child: rank for rank, children in enumerate(second) for child in children}
    for node in range(nodes):
        image = (node - 1) % nodes if nodes % 2 else nodes - 1 - node
        if image:
            above = parent_of(image, nodes)
            assert mirrored[node * here] // here == ((above + 1) % nodes if nodes % 2 else nodes - 1 - above)


def reduced(cluster: Cluster, ranks: int, length: int, dtype: torch.dtype, **settings: Any) -> list[float]:
    """Return the result of an all-reduce, which is the same on every rank."""

    def body() -> list[float]:
        tensor = inputs(ranks, length, dtype)[join()].cuda()
        dist.all_reduce(tensor, **settings)
        return tensor.double().tolist()

    found = results(body, ranks, cluster=cluster)
    assert found == [found[0]] * ranks
    values: list[float] = found[0]
    return values


def added(one: float, other: float, dtype: torch.dtype) -> float:
    return torch.tensor(one + other, dtype=torch.float64).to(dtype).double().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_tree_on_one_host_is_a_chain_to_its_first_rank(dtype: torch.dtype) -> None:
    cluster = build(4, devices_per_host=4, nccl=NcclModel(algorithm="tree"))

    found = reduced(cluster, 4, 33, dtype)

    parts = [part.double().tolist() for part in inputs(4, 33, dtype)]
    for element, value in enumerate(found):
        running = parts[3][element]
        for rank in (2, 1, 0):
            running = added(parts[rank][element], running, dtype)
        assert value == running


def test_two_trees_between_hosts_each_have_half_of_the_channels() -> None:
    model = NcclModel(algorithm="tree", protocol="simple", channels=2)
    length = 2 * 512 * 64  # enough for both channels
    cluster = build(4, hosts=4, devices_per_host=1, nccl=model)

    found = reduced(cluster, 4, length, torch.float32)

    parts = [part.double().tolist() for part in inputs(4, length, torch.float32)]
    sums = {0: (0, (2, (1,), (3,))), 1: (3, (1, (2,), (0,)))}  # tree 0: root 0 has the child 2, which has 1 and 3

    def total(node: Any, element: int) -> float:
        rank, *children = node
        value = float(parts[rank][element])
        for child in children:
            value = added(value, total(child, element), torch.float32)
        return value

    for element in (0, 1, 777, length // 2 - 1, length // 2, length - 1):
        assert found[element] == total(sums[element * 2 // length], element)


def test_a_ring_of_several_channels_has_its_loops_in_each() -> None:
    ranks, length, channels = 3, 3 * 40_000, 3
    model = NcclModel(algorithm="ring", protocol="simple", channels=channels)
    cluster = build(ranks, devices_per_host=ranks, nccl=model)

    found = reduced(cluster, ranks, length, torch.float32)

    each = length // channels
    chunk = (each // ranks + 1 + 3) // 4 * 4
    elements = [channel * each + place for channel in range(channels) for place in (0, chunk - 1, chunk, each - 1)]
    expected = folded(inputs(ranks, length, torch.float32), lambda element: element % each // chunk, elements)
    assert [found[element] for element in elements] == expected


def test_averages_and_integers_come_out_of_trees_too() -> None:
    cluster = build(4, devices_per_host=4, nccl=NcclModel(algorithm="tree"))

    def body() -> tuple[float, float]:
        rank = join()
        real = torch.full((5,), rank + 1.0, device="cuda")
        whole = torch.full((5,), rank + 2, device="cuda")
        dist.all_reduce(real, op=dist.ReduceOp.AVG)
        dist.all_reduce(whole, op=dist.ReduceOp.MAX)
        return real[4].item(), whole[4].item()

    assert results(body, 4, cluster=cluster) == [(2.5, 5)] * 4


def spent_us(cluster: Cluster, call: Any, ranks: int) -> float:
    """Return the virtual time of a collective, without that of making the communicator."""

    def body() -> float:
        join()
        process = current_process()
        assert process is not None
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        begin = process.simulation.now_ns
        call(ranks)
        torch.cuda.synchronize()
        return (process.simulation.now_ns - begin) / 1000

    first, *others = results(body, ranks, cluster=cluster)
    assert others == [first] * (ranks - 1)
    return float(first)


def all_reduce(size: int) -> Any:
    return lambda ranks: dist.all_reduce(torch.empty(size, dtype=torch.uint8, device="cuda"))


@pytest.mark.parametrize(
    ("hosts", "size", "expected"), [(1, KIB, 15.013), (1, MIB, 28.014), (1, 16 * MIB, 129.248), (4, MIB, 80.566)]
)
def test_an_all_reduce_takes_what_the_model_says(hosts: int, size: int, expected: float) -> None:
    ranks = 8 * hosts
    cluster = rail_optimised(ranks, devices_per_host=8, nccl=NcclModel())

    assert spent_us(cluster, all_reduce(size), ranks) == pytest.approx(expected, abs=0.002)


def test_links_that_are_slower_than_the_model_rule() -> None:
    cluster = rail_optimised(
        16,
        devices_per_host=8,
        bandwidth_bytes_per_s=1_000_000_000,
        nccl=NcclModel(algorithm="ring", bandwidth_bytes_per_s=48 * 10**9, local_bandwidth_bytes_per_s=48 * 10**9),
    )

    found = spent_us(cluster, all_reduce(8 * MIB), 16)

    # Each of a host's eight NICs carries an eighth of the bytes that a ring moves over a link, at 1 GB/s.
    moved = 2 * 15 / 16 * 8 * MIB / 8
    assert found == pytest.approx(moved / 1000, rel=0.2)


def test_gathers_and_scatters_cost_what_the_ring_costs() -> None:
    cluster = rail_optimised(8, devices_per_host=8, nccl=NcclModel())
    gathered = choose(ONE_H100, "all_gather", 8 * MIB)

    def gather(ranks: int) -> None:
        mine = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the name since torch 2.13
        gather(torch.empty(MIB * ranks, dtype=torch.uint8, device="cuda"), mine)

    assert spent_us(cluster, gather, 8) == pytest.approx(gathered.time_us, abs=0.002)


def test_a_group_with_unequal_hosts_is_refused_with_the_way_out() -> None:
    cluster = build(4, hosts=2, devices_per_host=2, nccl=NcclModel())

    def body() -> None:
        join()
        dist.new_group([0, 1, 2])

    with pytest.raises(UnsupportedError, match="2 on host0, 1 on host1; leave the nccl model out of the cluster"):
        results(body, 4, cluster=cluster)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"algorithm": "rings"}, "algorithm: unknown 'rings'; did you mean 'ring'?"),
        ({"channels": 0, "gpu": "volt"}, "channels: 0 is too small; the least is 1; gpu: unknown 'volt'"),
    ],
)
def test_what_is_no_model_is_reported(settings: Any, problem: str) -> None:
    with pytest.raises(TopologyError) as caught:
        NcclModel(**settings)

    assert problem in str(caught.value)
