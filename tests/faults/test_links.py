from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.faults import Fault, LinkDelay, Partition
from tests.faults.programs import MS, events_of, run, statuses

LATENCY_NS = 50_000
CLUSTER = build(3, local_latency_ns=LATENCY_NS, local_bandwidth_bytes_per_s=1_000_000_000)
SIZE_BYTES = 4_000
START_NS = 10 * MS  # well after the group has met

Arrival = tuple[int, int] | str


def message_times(
    *faults: Fault, source: int = 0, target: int = 1, timeout_s: float = 1
) -> dict[int, int | str | None]:
    """Return when a send that starts at 10 ms and its waiting receive end, by rank; or their errors."""

    def body() -> int | str | None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        rank = dist.get_rank()
        tensor = torch.zeros(SIZE_BYTES // 4)
        try:
            if rank == source:
                time.sleep((START_NS - time.monotonic_ns()) / 1e9)
                dist.send(tensor, target)
            elif rank == target:
                dist.recv(tensor, source)
            else:
                return None
        except RuntimeError as error:
            return str(error).partition("] ")[2].partition(" for ")[0]
        return time.monotonic_ns()

    result = simdist.run(body, world_size=3, cluster=CLUSTER, faults=faults)
    result.raise_for_failure()
    return {source: result.values[source], target: result.values[target]}


def test_a_message_takes_its_size_and_its_latency() -> None:
    assert message_times() == {0: START_NS + SIZE_BYTES, 1: START_NS + SIZE_BYTES + LATENCY_NS}


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_delayed_link_makes_messages_arrive_later(both_ways: bool) -> None:
    delay = LinkDelay(src=0, dst=1, delay_ns=3 * MS, both_ways=both_ways)

    assert message_times(delay)[1] == START_NS + SIZE_BYTES + LATENCY_NS + 3 * MS


def test_delays_of_one_link_add_up() -> None:
    delays = [LinkDelay(src=0, dst=1, delay_ns=3 * MS), LinkDelay(src=1, dst=0, delay_ns=2 * MS)]

    assert message_times(*delays)[1] == START_NS + SIZE_BYTES + LATENCY_NS + 5 * MS


def test_a_delay_of_one_way_leaves_the_other_way_alone() -> None:
    delay = LinkDelay(src=0, dst=1, delay_ns=3 * MS, both_ways=False)

    assert message_times(delay, source=1, target=0)[0] == START_NS + SIZE_BYTES + LATENCY_NS


def test_a_delay_leaves_other_links_alone() -> None:
    delay = LinkDelay(src=0, dst=1, delay_ns=3 * MS)

    assert message_times(delay, source=0, target=2)[2] == START_NS + SIZE_BYTES + LATENCY_NS


@pytest.mark.parametrize(
    ("start_ns", "until_ns", "late"),
    [
        (START_NS, None, True),
        (START_NS + 1, None, False),
        (0, START_NS, False),
        (0, START_NS + 1, True),
        (START_NS, START_NS + 1, True),
    ],
)
def test_a_delay_counts_when_the_message_leaves(start_ns: int, until_ns: int | None, late: bool) -> None:
    delay = LinkDelay(src=0, dst=1, delay_ns=3 * MS, start_ns=start_ns, until_ns=until_ns)

    assert message_times(delay)[1] == START_NS + SIZE_BYTES + LATENCY_NS + (3 * MS if late else 0)


def test_a_delay_is_reported_when_it_begins() -> None:
    result = run(LinkDelay(src=0, dst=2, delay_ns=3 * MS, start_ns=2 * MS))

    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (2 * MS, -1)
    assert event.data == {
        "fault": "link_delay",
        "text": "messages between ranks 0 and 2 take 3 ms longer",
        "life": 0,
    }


def test_a_delayed_link_slows_every_collective() -> None:
    clean, slow = run(), run(LinkDelay(src=0, dst=1, delay_ns=MS))

    assert slow.ok
    for index in range(3):
        assert min(values[index] for values in slow.values) >= clean.values[0][index] + (index + 1) * MS


# -- partitions -----------------------------------------------------------------------------------------------------


def test_a_message_across_a_partition_arrives_after_it_heals() -> None:
    healed_ns = START_NS + 100 * MS
    cut = Partition(groups=((0,), (1, 2)), start_ns=START_NS - MS, until_ns=healed_ns)

    assert message_times(cut) == {0: healed_ns + SIZE_BYTES, 1: healed_ns + SIZE_BYTES + LATENCY_NS}


def test_a_partition_that_does_not_heal_makes_both_ends_run_out_of_time() -> None:
    cut = Partition(groups=((0,), (1, 2)), start_ns=START_NS - MS)

    assert message_times(cut) == {0: "Timed out waiting 1000ms", 1: "Timed out waiting 1000ms"}


def test_ranks_on_one_side_and_ranks_on_none_are_not_cut_off() -> None:
    arrived = START_NS + SIZE_BYTES + LATENCY_NS

    assert message_times(Partition(groups=((0, 1), (2,))))[1] == arrived
    assert message_times(Partition(groups=((1,), (2,))))[1] == arrived


def test_a_partition_before_or_after_a_message_does_not_touch_it() -> None:
    arrived = START_NS + SIZE_BYTES + LATENCY_NS

    assert message_times(Partition(groups=((0,), (1,)), start_ns=START_NS - 2, until_ns=START_NS - 1))[1] == arrived
    later = Partition(groups=((0,), (1,)), start_ns=START_NS + 2 * MS, optional=True)
    assert message_times(later)[1] == arrived


def test_partitions_one_after_the_other_add_up() -> None:
    first = Partition(groups=((0,), (1,)), start_ns=START_NS, until_ns=START_NS + 5 * MS)
    second = Partition(groups=((0, 2), (1,)), start_ns=START_NS + 4 * MS, until_ns=START_NS + 9 * MS)

    assert message_times(first, second)[1] == START_NS + 9 * MS + SIZE_BYTES + LATENCY_NS


def test_a_partition_and_its_end_are_reported() -> None:
    result = run(Partition(groups=((0, 1), (2,)), start_ns=2 * MS, until_ns=5 * MS))

    assert [(event.time_ns, event.rank, event.data["text"]) for event in events_of(result, "fault")] == [
        (2 * MS, -1, "the network splits: ranks 0, 1 | 2"),
        (5 * MS, -1, "the network heals: ranks 0, 1 | 2"),
    ]


def test_collectives_wait_for_a_partition_to_heal() -> None:
    clean = run()
    healed_ns = 50 * MS
    result = run(Partition(groups=((0, 1), (2,)), start_ns=clean.values[0][0] + 5, until_ns=healed_ns))

    assert result.ok
    assert [values[0] for values in result.values] == [values[0] for values in clean.values]
    assert min(values[1] for values in result.values) >= healed_ns


def test_collectives_across_a_partition_that_does_not_heal_run_out_of_time() -> None:
    clean = run()
    result = run(Partition(groups=((0, 1), (2,)), start_ns=clean.values[0][0] + 5), timeout_s=3)

    assert statuses(result) == ["raised"] * 3
    for rank in result.ranks:
        assert 3_000 * MS < rank.ended_ns < 3_010 * MS


def test_a_partition_is_no_deadlock() -> None:
    result = run(Partition(groups=((0,), (1, 2)), start_ns=2 * MS), backend="sim")

    assert statuses(result) == ["hung"] * 3
    assert result.deadlock is None
