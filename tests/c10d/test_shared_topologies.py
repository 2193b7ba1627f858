"""Collectives where ranks share wires: the fullest link decides, even if no other collective runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from simdist.cluster import Cluster, build, fat_tree, one_host, switched
from tests.c10d.worlds import in_group, now_ns

MIB = 1 << 20
GB = 1_000_000_000  # one nanosecond a byte
LATENCY_NS = 80_000


def floats(size_bytes: int) -> torch.Tensor:
    return torch.zeros(size_bytes // 4)


def gather(rank: int) -> None:
    dist.gather(floats(4 * MIB), [floats(4 * MIB) for _ in range(4)] if rank == 0 else None, 0)


def exchange(rank: int) -> None:
    dist.all_to_all_single(floats(4 * MIB), floats(4 * MIB))


def reduce_all(rank: int) -> None:
    dist.all_reduce(floats(4 * MIB))


def took(body: Callable[[int], None], cluster: Cluster) -> int:
    def timed(rank: int) -> int:
        dist.barrier()
        zero = now_ns()
        body(rank)
        return now_ns() - zero

    times: list[int] = in_group(timed, cluster.world_size, cluster=cluster)
    return max(times)


def test_a_gather_takes_what_the_roots_nic_takes_for_all_blocks() -> None:
    apart = took(gather, build(4, hosts=4, bandwidth_bytes_per_s=GB))
    shared = took(gather, switched(4, hosts=4, bandwidth_bytes_per_s=GB))

    assert apart == 2 * LATENCY_NS + 4 * MIB
    assert shared == 2 * LATENCY_NS + 3 * 4 * MIB


def test_blocks_of_two_ranks_go_through_the_one_nic_of_their_host() -> None:
    apart = took(exchange, build(4, hosts=2, bandwidth_bytes_per_s=GB))
    shared = took(exchange, switched(4, hosts=2, bandwidth_bytes_per_s=GB))

    assert apart == 2 * LATENCY_NS + 3 * MIB  # a block for each other rank
    assert shared == 2 * LATENCY_NS + 2 * 2 * MIB  # two ranks' blocks for two ranks elsewhere


def test_a_ring_crosses_each_nic_once_so_that_one_for_all_ranks_is_enough() -> None:
    apart = took(reduce_all, build(4, hosts=2, bandwidth_bytes_per_s=GB))

    assert took(reduce_all, switched(4, hosts=2, bandwidth_bytes_per_s=GB)) == apart


def test_a_ring_through_a_bus_takes_what_all_its_ranks_send() -> None:
    wide = took(reduce_all, one_host(4))
    narrow = took(reduce_all, one_host(4, bus_bandwidth_bytes_per_s=GB))

    carried = 4 * 2 * 3 * MIB  # four ranks, two phases, three quarters of 4 MiB
    assert narrow == pytest.approx(carried, rel=0.02)
    assert wide < narrow / 4


def test_oversubscription_slows_what_crosses_the_core() -> None:
    def cluster(oversubscription: float) -> Cluster:
        return fat_tree(4, hosts=4, hosts_per_leaf=2, oversubscription=oversubscription, bandwidth_bytes_per_s=GB)

    full, half, quarter = (took(exchange, cluster(factor)) for factor in (1.0, 2.0, 4.0))

    # Two hosts of a leaf send two blocks each to the other leaf: 4 MiB through two, one, and half of a NIC's width.
    assert (half - full, quarter - half) == (MIB, 4 * MIB)


def test_two_groups_meet_on_the_nic_of_their_host() -> None:
    def body(rank: int) -> int:
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        dist.barrier()
        zero = now_ns()
        dist.all_reduce(floats(8 * MIB), group=groups[rank % 2])
        return now_ns() - zero

    apart = max(in_group(body, 4, cluster=build(4, hosts=2, bandwidth_bytes_per_s=GB)))
    shared = max(in_group(body, 4, cluster=switched(4, hosts=2, bandwidth_bytes_per_s=GB)))

    assert shared - apart == 8 * MIB
