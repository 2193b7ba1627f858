"""Links with less bandwidth: data moves at no more than the rate while the fault lasts."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import Network, build
from simdist.faults import Fault, LinkDelay, LinkSlow, Partition, problems_of
from simdist.world import World, WorldSpec
from tests.faults.programs import MS, events_of, run, statuses
from tests.faults.test_links import CLUSTER, LATENCY_NS, SIZE_BYTES, START_NS, message_times

BYTE_NS = 250  # at 4 MB/s, instead of 1
SLOW_NS = SIZE_BYTES * BYTE_NS
SLOW = LinkSlow(src=0, dst=1, bandwidth=4_000_000)


def test_a_message_moves_at_the_rate_of_the_slow_link() -> None:
    assert message_times(SLOW) == {0: START_NS + SLOW_NS, 1: START_NS + SLOW_NS + LATENCY_NS}


@pytest.mark.parametrize(("source", "target"), [(1, 0), (0, 2), (2, 1)])
def test_the_other_way_and_other_links_are_as_fast_as_before(source: int, target: int) -> None:
    slow = LinkSlow(src=0, dst=1, bandwidth=4_000_000, both_ways=False)
    times = message_times(slow, source=source, target=target)

    assert times[target] == START_NS + SIZE_BYTES + LATENCY_NS


def test_both_ways_are_slow_by_default() -> None:
    assert message_times(SLOW, source=1, target=0)[0] == START_NS + SLOW_NS + LATENCY_NS


def test_more_bandwidth_than_the_link_has_changes_nothing() -> None:
    fast = LinkSlow(src=0, dst=1, bandwidth=2_000_000_000)

    assert message_times(fast)[1] == START_NS + SIZE_BYTES + LATENCY_NS


@pytest.mark.parametrize(
    ("start_ns", "until_ns", "longer_ns"),
    [
        (START_NS, START_NS + 1_000, 1_000 - 4),  # in 1,000 ns 4 bytes, not 1,000
        (START_NS + 1_000, None, 3_000 * (BYTE_NS - 1)),  # 1,000 bytes left before
        (START_NS + 1_000, START_NS + 2_000, 1_000 - 4),
        (START_NS + 4_000, None, 0),
        (0, START_NS, 0),
    ],
)
def test_a_message_is_slow_while_the_fault_lasts(start_ns: int, until_ns: int | None, longer_ns: int) -> None:
    slow = LinkSlow(src=0, dst=1, bandwidth=4_000_000, start_ns=start_ns, until_ns=until_ns, optional=True)

    assert message_times(slow)[1] == START_NS + SIZE_BYTES + LATENCY_NS + longer_ns


def test_the_slowest_of_several_limits_counts_and_delays_and_cuts_add_up() -> None:
    faults: list[Fault] = [
        SLOW,
        LinkSlow(src=0, dst=1, bandwidth=2_000_000),
        LinkDelay(src=0, dst=1, delay_ns=3 * MS),
        Partition(groups=((0,), (1,)), until_ns=START_NS + 5 * MS),
    ]

    assert message_times(*faults)[1] == START_NS + 5 * MS + 2 * SLOW_NS + LATENCY_NS + 3 * MS


def messages(count: int) -> list[int]:
    """Send several messages from rank 0 to ranks 1 and 2 at once; returns when each has arrived."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    works = [dist.irecv(torch.zeros(SIZE_BYTES // 4), 0) for _ in range(count)] if rank else []
    time.sleep((START_NS - time.monotonic_ns()) / 1e9)
    if rank == 0:
        works = [dist.isend(torch.zeros(SIZE_BYTES // 4), target) for _ in range(count) for target in (1, 2)]
    times = []
    for work in works:
        assert work is not None
        work.wait()
        times.append(time.monotonic_ns() - START_NS)
    return times


def test_messages_wait_behind_each_other_and_not_those_to_other_ranks() -> None:
    result = simdist.run(messages, args=(3,), world_size=3, cluster=CLUSTER, faults=[SLOW])

    assert result.values[1] == [count * SLOW_NS + LATENCY_NS for count in (1, 2, 3)]
    assert all(each < 10 * SIZE_BYTES + LATENCY_NS for each in result.values[2])


def test_a_limit_that_is_lifted_lets_the_rest_of_a_message_go_fast() -> None:
    world = World(WorldSpec(call=lambda rank: messages(2), world_size=3, cluster=CLUSTER, faults=(SLOW,)))
    world.start()
    world.advance(START_NS + SLOW_NS // 2)
    world.injector.lift(SLOW)
    result = world.finish()
    world.close()

    first_ns = SLOW_NS // 2 + SIZE_BYTES // 2 + LATENCY_NS
    assert result.values[1] == [first_ns, first_ns + SIZE_BYTES]


def reduce_all(backend: str) -> int:
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    data = torch.ones(250_000, device="cuda" if backend == "nccl" else "cpu")
    begin_ns = time.monotonic_ns()
    dist.all_reduce(data)
    if backend == "nccl":
        torch.cuda.synchronize()
    assert data[-1].item() == dist.get_world_size()
    return time.monotonic_ns() - begin_ns


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_ring_is_as_slow_as_its_slowest_link(backend: str) -> None:
    slow = LinkSlow(src=1, dst=2, bandwidth=2_000_000)
    clean = simdist.run(reduce_all, args=(backend,), world_size=4, backend=backend)
    late = simdist.run(reduce_all, args=(backend,), world_size=4, backend=backend, faults=[slow])

    # For 1 MB a ring sends six quarters over each link: 1.5 MB at 2 MB/s.
    assert late.ok, str(late)
    assert max(clean.values) < 10 * MS
    assert 750 * MS <= max(late.values) < 760 * MS


def test_collectives_over_a_slow_link_are_the_same_each_time() -> None:
    first, second = run(SLOW), run(SLOW)

    assert statuses(first) == ["returned"] * 3
    assert first.digest == second.digest
    assert first.values[0][0] > run().values[0][0] + 3 * MS  # 16 kB at 4 MB/s
    (event,) = events_of(first, "fault")
    assert event.data["text"] == "no more than 4 MB/s get through between ranks 0 and 1"


def test_what_goes_through_a_limit_is_counted_through_its_begin_and_end() -> None:
    network = Network(build(2, local_bandwidth_bytes_per_s=1_000_000_000))
    network.limit(0, 1, 100_000_000, start_ns=100, until_ns=300)
    network.limit(0, 1, 10_000_000, start_ns=200, until_ns=400)

    # 100 bytes until 100 ns, 10 more until 200, 2 more until 400, then one each nanosecond.
    assert [network.through_ns(0, 1, size, 0, size) for size in (100, 110, 111, 112, 113)] == [100, 200, 300, 400, 401]
    assert network.through_ns(0, 1, 50, 0, 77) == 77
    assert network.through_ns(1, 0, 113, 0, 113) == 113


@pytest.mark.parametrize(
    ("bandwidth", "problem"),
    [
        (0, "0 is too small; the least is 1"),
        ("1MB/s", "expected a whole number, found the text '1MB/s'"),
    ],
)
def test_a_bandwidth_that_is_none_is_refused(bandwidth: int, problem: str) -> None:
    assert problems_of([LinkSlow(src=0, dst=1, bandwidth=bandwidth)], 2) == [f"faults[0].bandwidth: {problem}"]


def test_a_slow_link_is_reported_with_its_direction() -> None:
    slow = LinkSlow(src=0, dst=1, bandwidth=4_000_000, both_ways=False)

    assert slow.begins() == "no more than 4 MB/s get through from rank 0 to rank 1"
    assert slow.ends() == "the bandwidth from rank 0 to rank 1 is as before"
    assert repr(slow) == "LinkSlow(src=0, dst=1, bandwidth=4000000, both_ways=False)"
