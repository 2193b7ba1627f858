"""Messages that are held stay in flight, in order, and leave when they are released."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.faults import Crash, Fault, Hold, Partition
from simdist.result import RunResult
from simdist.world import World, WorldSpec
from tests.faults.programs import MS, events_of, run, statuses

LATENCY_NS = 50_000
CLUSTER = build(3, local_latency_ns=LATENCY_NS, local_bandwidth_bytes_per_s=1_000_000_000)
SIZE_BYTES = 4_000
START_NS = 10 * MS


def messages(count: int = 3, source: int = 0, target: int = 1, timeout_s: float = 60) -> list[int]:
    """Return when each of some messages has arrived; their senders and receivers start at 10 ms."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    rank = dist.get_rank()
    tensors = [torch.full((SIZE_BYTES // 4,), float(number)) for number in range(count)]
    time.sleep((START_NS - time.monotonic_ns()) / 1e9)
    times = []
    if rank == source:
        for request in [dist.isend(tensor, target) for tensor in tensors]:
            assert request is not None
            request.wait()
    elif rank == target:
        for number in range(count):
            box = torch.zeros(SIZE_BYTES // 4)
            dist.recv(box, source)
            assert box[0].item() == number
            times.append(time.monotonic_ns())
    return times


def held(*faults: Fault, **arguments: int) -> RunResult:
    return simdist.run(messages, world_size=3, cluster=CLUSTER, faults=faults, kwargs=arguments)


def test_held_messages_leave_at_the_release_in_their_order() -> None:
    (first, *rest) = held(Hold(src=0, dst=1, until_ns=2_000 * MS)).values[1]

    assert first == 2_000 * MS + SIZE_BYTES + LATENCY_NS
    assert rest == sorted(rest)
    assert rest[-1] < 2_001 * MS


def test_a_hold_is_for_one_direction_unless_it_is_for_both() -> None:
    hold = Hold(src=1, dst=0, until_ns=2_000 * MS)
    both = Hold(src=1, dst=0, until_ns=2_000 * MS, both_ways=True)

    assert held(hold).values[1][0] < 11 * MS
    assert held(both).values[1][0] == 2_000 * MS + SIZE_BYTES + LATENCY_NS


def test_a_hold_leaves_other_ranks_alone() -> None:
    assert held(Hold(src=0, dst=2)).values == held().values


def test_a_hold_without_end_ends_in_a_timeout() -> None:
    result = held(Hold(src=0, dst=1), timeout_s=5)

    assert statuses(result) == ["raised", "raised", "returned"]
    assert "Timed out waiting 5000ms for" in str(result.ranks[1].exception)


def test_a_hold_stops_a_collective_and_its_end_lets_it_go_on() -> None:
    free = run()
    late = run(Hold(src=1, dst=0, start_ns=1 * MS, until_ns=500 * MS))

    assert statuses(late) == ["returned"] * 3
    assert late.ranks[0].ended_ns > 500 * MS > free.ranks[0].ended_ns


def test_a_hold_and_a_partition_on_one_link_both_have_to_end() -> None:
    faults: list[Fault] = [Hold(src=0, dst=1, until_ns=2_000 * MS), Partition(groups=((0,), (1,)), until_ns=3_000 * MS)]

    assert held(*faults).values[1][0] == 3_000 * MS + SIZE_BYTES + LATENCY_NS


def test_a_rank_that_dies_takes_its_held_messages_with_it() -> None:
    result = held(Hold(src=0, dst=1, until_ns=2_000 * MS), Crash(rank=0, at_ns=1_000 * MS))

    assert statuses(result) == ["killed", "raised", "returned"]
    assert result.ranks[1].ended_ns == 2_000 * MS + LATENCY_NS  # the end of the connection is held, too


def test_begin_and_end_of_a_hold_are_reported() -> None:
    result = held(Hold(src=0, dst=1, start_ns=1 * MS, until_ns=2_000 * MS))

    assert [(event.time_ns, event.data["text"]) for event in events_of(result, "fault")] == [
        (1 * MS, "messages from rank 0 to rank 1 are held"),
        (2_000 * MS, "messages from rank 0 to rank 1 are released"),
    ]


# -- faults that begin and end while the world runs --------------------------------------------------------------------


def world_of(*faults: Fault) -> World:
    spec = WorldSpec(call=lambda rank: messages(), world_size=3, cluster=CLUSTER, faults=faults)
    world = World(spec)
    world.start()
    return world


def test_a_hold_that_is_lifted_is_one_that_ended_then() -> None:
    hold = Hold(src=0, dst=1)
    world = world_of(hold)
    world.advance(2_000 * MS)
    world.injector.lift(hold)
    result = world.finish()
    world.close()

    assert result.values == held(Hold(src=0, dst=1, until_ns=2_000 * MS)).values


@pytest.mark.parametrize("moment_ns", [START_NS, START_NS + 1, START_NS + LATENCY_NS, START_NS + LATENCY_NS + 9_000])
def test_a_hold_that_comes_late_holds_what_has_not_left(moment_ns: int) -> None:
    world = world_of()
    world.advance(moment_ns)
    hold = Hold(src=0, dst=1)
    world.injector.add(hold)
    world.advance(2_000 * MS)
    world.injector.lift(hold)
    result = world.finish()
    world.close()

    free = held().values[1]
    left_before = [when for when in free if when - LATENCY_NS - SIZE_BYTES <= moment_ns]
    assert result.values[1][: len(left_before)] == left_before
    assert all(when > 2_000 * MS for when in result.values[1][len(left_before) :])
    assert len(result.values[1]) == 3


def test_a_fault_that_is_lifted_before_it_strikes_never_does() -> None:
    crash = Crash(rank=0, at_ns=START_NS)
    hold = Hold(src=0, dst=1, start_ns=START_NS)
    world = world_of(crash, hold)
    world.advance(START_NS - 1)
    world.injector.lift(crash)
    world.injector.lift(hold)
    result = world.finish()
    world.close()

    assert result.values == held().values
    assert [event for event in result.events if event.kind == "fault" and event.time_ns >= START_NS] == []
