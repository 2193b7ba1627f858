"""Operations under way at the same time share the links: collectives, groups, messages, buckets, followed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from simdist.cluster import Cluster, build
from simdist.faults import Crash, LinkDelay
from tests.c10d.worlds import in_group, now_ns

LATENCY_NS = 50_000
MIB = 1 << 20
WIDE: dict[str, Any] = {"local_latency_ns": LATENCY_NS, "local_bandwidth_bytes_per_s": 1_000_000_000}  # 1 ns per byte


def floats(size_bytes: int) -> torch.Tensor:
    return torch.zeros(size_bytes // 4)


def took(body: Callable[[int], object], ranks: int, cluster: Cluster | None = None, **options: Any) -> list[int]:
    """Return how long `body` took on each rank; all ranks begin together."""

    def timed(rank: int) -> int:
        dist.barrier()
        zero = now_ns()
        body(rank)
        return now_ns() - zero

    return in_group(timed, ranks, cluster=cluster or build(ranks, **WIDE), **options)


def reduce_all(sizes: list[int]) -> Callable[[int], None]:
    def body(rank: int) -> None:
        works = [dist.all_reduce(floats(size), async_op=True) for size in sizes]
        for work in works:
            assert work is not None
            work.wait()

    return body


@pytest.mark.parametrize(("count", "size"), [(16, 2 * MIB), (2, 8 * MIB), (8, 2 * MIB)])
def test_overlapped_all_reduces_cost_what_one_of_their_total_size_costs(count: int, size: int) -> None:
    one = max(took(reduce_all([count * size]), 4))
    many = max(took(reduce_all([size] * count), 4))

    assert abs(many / one - 1) < 0.05


def test_two_overlapped_all_reduces_cost_two_in_turn_less_a_latency() -> None:
    (alone,) = set(took(reduce_all([8 * MIB]), 2))
    (both,) = set(took(reduce_all([8 * MIB, 8 * MIB]), 2))

    # Each phase of the ring ends with a message's two latencies, in which only the other operation uses the wire.
    assert 2 * alone - both == 2 * 2 * LATENCY_NS
    assert both == max(took(reduce_all([16 * MIB]), 2))


def test_all_reduces_of_different_sizes_end_when_their_bytes_are_through() -> None:
    ends: dict[tuple[int, int], int] = {}

    def body(rank: int) -> None:
        for size in (MIB, 16 * MIB):
            work = dist.all_reduce(floats(size), async_op=True)
            assert work is not None
            work.get_future().then(lambda _, size=size: ends.setdefault((rank, size), now_ns()))
        work.wait()

    took(body, 2)

    # Each link carries 2 (P-1)/P = 1 times the payload; the small one has half of the link until it is through.
    assert ends[0, 16 * MIB] - ends[0, MIB] == pytest.approx(15 * MIB, rel=0.01)


def test_two_groups_of_the_same_ranks_share_their_links() -> None:
    one = max(took(reduce_all([16 * MIB]), 4))

    def body(rank: int) -> None:
        groups = [dist.new_group(list(range(4))) for _ in range(2)]
        dist.barrier(groups[0])
        dist.barrier(groups[1])
        begin = now_ns()
        works = [dist.all_reduce(floats(8 * MIB), group=group, async_op=True) for group in groups]
        for work in works:
            assert work is not None
            work.wait()
        times.append(now_ns() - begin)

    times: list[int] = []
    took(body, 4)

    assert abs(max(times) / one - 1) < 0.05


def test_groups_of_different_ranks_do_not_touch_each_other() -> None:
    (alone,) = set(took(reduce_all([8 * MIB]), 2))

    def body(rank: int) -> int:
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.barrier()
        zero = now_ns()
        dist.all_reduce(floats(8 * MIB), group=groups[rank // 2])
        return now_ns() - zero

    assert in_group(body, 4, cluster=build(4, **WIDE)) == [alone] * 4


def test_sends_to_two_peers_share_the_way_out() -> None:
    def body(rank: int) -> None:
        if rank:
            dist.recv(floats(MIB), 0)
            return
        for work in [dist.isend(floats(MIB), peer) for peer in (1, 2)]:
            assert work is not None
            work.wait()

    word_ns = LATENCY_NS  # the notice that a receive is posted

    assert took(body, 3) == [word_ns + 2 * MIB, word_ns + 2 * MIB + LATENCY_NS, word_ns + 2 * MIB + LATENCY_NS]


def test_sends_of_two_ranks_to_one_share_the_way_in() -> None:
    def body(rank: int) -> None:
        if rank:
            dist.send(floats(MIB), 0)
            return
        for work in [dist.irecv(floats(MIB), peer) for peer in (1, 2)]:
            assert work is not None
            work.wait()

    assert took(body, 3) == [LATENCY_NS + 2 * MIB + LATENCY_NS, LATENCY_NS + 2 * MIB, LATENCY_NS + 2 * MIB]


def test_messages_to_a_peer_keep_their_order_and_share_with_others() -> None:
    def body(rank: int) -> list[int]:
        dist.barrier()
        zero = now_ns()
        ends = []
        if rank == 0:
            works = [dist.isend(floats(MIB), 1) for _ in range(2)] + [dist.isend(floats(MIB), 2)]
        else:
            works = [dist.irecv(floats(MIB), 0) for _ in range(2 if rank == 1 else 1)]
        for work in works:
            assert work is not None
            work.wait()
            ends.append(now_ns() - zero)
        return ends

    first, second, third = in_group(body, 3, cluster=build(3, **WIDE))
    there = 2 * LATENCY_NS

    assert second == [there + 2 * MIB, there + 3 * MIB]  # half of the way out, then all of it
    assert third == [there + 2 * MIB]
    assert first == [LATENCY_NS + 2 * MIB, LATENCY_NS + 3 * MIB, LATENCY_NS + 3 * MIB]


def test_both_ways_at_once_cost_no_more_than_one() -> None:
    def body(rank: int) -> None:
        works = [dist.isend(floats(MIB), 1 - rank), dist.irecv(floats(MIB), 1 - rank)]
        for work in works:
            assert work is not None
            work.wait()

    assert took(body, 2) == [LATENCY_NS + MIB + LATENCY_NS] * 2


def test_a_message_beside_an_all_reduce_takes_half_of_its_link() -> None:
    def body(rank: int) -> None:
        work = dist.all_reduce(floats(8 * MIB), async_op=True)
        assert work is not None
        if rank == 0:
            dist.send(floats(MIB), 1)
        else:
            dist.recv(floats(MIB), 0)
        ends.append(now_ns())
        work.wait()

    ends: list[int] = []
    (alone,) = set(took(reduce_all([8 * MIB]), 2))
    (both,) = set(took(body, 2))

    # The message leaves after one latency, the ring has four in all: until then the message is alone on the link.
    assert both - alone == MIB - 3 * LATENCY_NS
    assert ends[1] - ends[0] == LATENCY_NS


@pytest.mark.parametrize("operation", ["broadcast", "gather", "scatter"])
def test_two_rooted_collectives_at_once_share_their_links(operation: str) -> None:
    def body(count: int) -> Callable[[int], None]:
        def call(rank: int) -> Any:
            tensor = floats(4 * MIB)
            if operation == "broadcast":
                return dist.broadcast(tensor, 0, async_op=True)
            parts = [floats(4 * MIB) for _ in range(2)] if rank == 0 else None
            if operation == "gather":
                return dist.gather(tensor, parts, 0, async_op=True)
            return dist.scatter(tensor, parts, 0, async_op=True)

        def calls(rank: int) -> None:
            for work in [call(rank) for _ in range(count)]:
                work.wait()

        return calls

    one, two = max(took(body(1), 2)), max(took(body(2), 2))

    assert two - one == pytest.approx(4 * MIB, rel=1e-5)


def test_broadcasts_after_each_other_cost_what_they_cost_alone() -> None:
    def body(rank: int) -> None:
        for _ in range(5):
            dist.broadcast(floats(MIB), 0)

    one = took(lambda _: dist.broadcast(floats(MIB), 0), 2)

    assert took(body, 2)[1] == 5 * one[1]


def test_buckets_of_ddp_cost_what_their_bytes_cost() -> None:
    def body(bucket_mib: float) -> Callable[[int], None]:
        def step(rank: int) -> None:
            model = DistributedDataParallel(
                nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]), bucket_cap_mb=bucket_mib
            )
            begin = now_ns()
            model(torch.ones(1, 512)).sum().backward()
            times.append(now_ns() - begin)

        return step

    times: list[int] = []
    took(body(1), 4)
    several, times = max(times), []
    took(body(64), 4)

    assert abs(several / max(times) - 1) < 0.05


def test_a_crash_leaves_the_links_to_the_others() -> None:
    def body(rank: int) -> int:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 2])]
        dist.barrier()
        zero = now_ns()
        if rank == 1:
            dist.send(floats(16 * MIB), 0)
        elif rank == 2:
            dist.send(floats(16 * MIB), 0, group=groups[1])
        else:
            lost = dist.irecv(floats(16 * MIB), 1)
            kept = dist.irecv(floats(16 * MIB), 2, group=groups[1])
            assert kept is not None
            kept.wait()
            assert lost is not None
        return now_ns() - zero

    def run(faults: list[Any]) -> int:
        result = simdist.run(in_body, world_size=3, cluster=build(3, **WIDE), faults=faults)
        value = result.ranks[0].value
        assert isinstance(value, int)
        return value

    def in_body() -> int:
        dist.init_process_group("gloo")
        return body(dist.get_rank())

    shared = run([])
    alone_from = run([Crash(rank=1, at_ns=10_000_000)])

    assert shared == 2 * LATENCY_NS + 32 * MIB
    assert 2 * LATENCY_NS + 16 * MIB < alone_from < shared - 5_000_000


def test_a_disturbed_network_shares_its_links_too() -> None:
    slow = [LinkDelay(src=0, dst=1, delay_ns=1_000)]

    one = max(took(reduce_all([16 * MIB]), 4, faults=slow))
    two = max(took(reduce_all([8 * MIB, 8 * MIB]), 4, faults=slow))

    assert abs(two / one - 1) < 0.05


def test_a_collective_that_is_followed_halfway_keeps_what_it_had() -> None:
    def body(rank: int) -> None:
        works = [dist.all_reduce(floats(16 * MIB), async_op=True) for _ in range(2)]
        for work in works:
            assert work is not None
            work.wait()

    undisturbed = max(took(body, 4))
    late = [LinkDelay(src=0, dst=3, delay_ns=0, start_ns=20_000_000)]
    followed = max(took(body, 4, faults=late))

    assert abs(followed / undisturbed - 1) < 0.02
