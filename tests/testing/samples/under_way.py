"""Tests that change worlds under way with the fixture `sim`. Each has the outcome that its name says."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from simdist.errors import SimdistError
from simdist.testing import Sim
from tests.testing.samples.driven import MS, ask_store, keep_on, receive, train


def test_passes_with_exact_time(sim: Sim) -> None:
    whole = sim.run(train, world_size=3)
    world = sim.start(train, world_size=3)
    times = []
    for _ in range(4):
        assert world.advance("700ms")
        times.append(world.now_ns)

    result = world.finish()

    assert times == [700 * MS, 1400 * MS, 2100 * MS, 2800 * MS]
    assert result.digest == whole.digest  # stops leave no mark
    assert result.virtual_time_ns == whole.virtual_time_ns


def test_passes_with_what_happens_at_the_last_instant(sim: Sim) -> None:
    def wakes() -> None:
        time.sleep(1)
        time.sleep(0)
        print("woke")
        time.sleep(1)

    world = sim.start(wakes, world_size=2)
    world.advance_to(1000 * MS - 1)
    assert [rank.stdout for rank in world.ranks] == ["", ""]
    world.advance(1)

    assert world.now_ns == 1000 * MS
    assert [rank.stdout for rank in world.ranks] == ["woke\n", "woke\n"]
    assert world.ranks[0].waiting == "sleep until 2.000000000 s"


def test_passes_with_a_world_that_ends_before(sim: Sim) -> None:
    world = sim.start(train, world_size=2, kwargs={"steps": 1})

    assert not world.advance("1h")
    assert world.now_ns < 1100 * MS
    assert [rank.status for rank in world.ranks] == ["returned", "returned"]
    assert world.finish().ok
    assert world.over
    with pytest.raises(SimdistError, match="this world has ended"):
        world.advance("1s")


def test_passes_with_time_that_never_goes_back(sim: Sim) -> None:
    with sim.start(train, world_size=2) as world:
        world.advance_to("2s")
        with pytest.raises(SimdistError, match="does not go back"):
            world.advance_to("1s")
        with pytest.raises(ValueError, match="is no duration"):
            world.advance("soon")
    assert world.over


def test_passes_with_one_world_at_a_time(sim: Sim) -> None:
    sim.start(train, world_size=2)

    with pytest.raises(SimdistError, match="another world of this test is under way"):
        sim.run(train, world_size=2)


def test_passes_with_a_crash_now(sim: Sim) -> None:
    world = sim.start(train, world_size=3)
    world.advance("1500ms")
    sim.crash(2)
    assert [rank.status for rank in world.ranks] == ["running", "running", "killed"]
    world.advance("1s")
    assert [rank.status for rank in world.ranks] == ["raised", "raised", "killed"]

    result = world.finish(check=False)

    assert result.ranks[2].ended_ns == 1500 * MS
    assert "Connection closed by peer" in str(result.ranks[0].exception)


def test_passes_with_faults_given_now_for_later(sim: Sim) -> None:
    world = sim.start(train, world_size=2, kwargs={"steps": 9})
    world.advance("1500ms")
    sim.crash(0, step=4)
    sim.slow(1, "1s", until="4s")

    result = world.finish(check=False)

    reported = [(event.time_ns, event.data["fault"]) for event in result.events if event.kind == "fault"]
    assert reported[0] == (1500 * MS, "slow_rank")
    assert reported[1][1] == "crash"
    assert reported[1][0] > 5000 * MS


def test_passes_with_an_exception_now(sim: Sim) -> None:
    world = sim.start(keep_on, world_size=2)
    world.advance("1500ms")
    sim.raise_in(0, "DistNetworkError")

    result = world.finish()

    assert result.values == [([("injected by a fault", 2_000_350_002)], 3_000_650_006), ([], 3_000_650_006)]


def test_passes_with_a_store_that_is_slow_for_a_while(sim: Sim) -> None:
    world = sim.start(ask_store, world_size=2)
    world.advance("1500ms")
    slowness = sim.delay_store("5s")
    world.advance("1s")
    slowness.lift()

    result = world.finish()

    assert result.values == [[1_000_200_000, 7_000_200_000, 8_000_200_000]] * 2


def test_passes_with_a_store_lost_now(sim: Sim) -> None:
    world = sim.start(ask_store, world_size=2)
    world.advance("1500ms")
    loss = sim.lose_store()
    world.advance("100ms")
    loss.lift()

    result = world.finish(check=False)

    reported = [(event.time_ns, event.data["fault"]) for event in result.events if event.kind == "fault"]
    assert reported == [(1500 * MS, "store_lost")]
    assert [rank.ended_ns for rank in result.ranks] == [3_000_200_000] * 2


def test_passes_with_a_hang_that_is_ended(sim: Sim) -> None:
    world = sim.start(train, world_size=2)
    world.advance("1500ms")
    hang = sim.hang(0)
    world.advance("60s")
    assert world.ranks[0].waiting.startswith("stopped by a fault")
    assert world.ranks[1].waiting.startswith("all_reduce #1")
    hang.resume()

    result = world.finish()

    assert 62_000 * MS < result.virtual_time_ns < 63_000 * MS


def test_passes_with_a_partition_that_is_healed(sim: Sim) -> None:
    world = sim.start(train, world_size=3)
    world.advance("1500ms")
    cut = sim.partition([0, 1], [2])
    world.advance("20min")
    assert all(rank.waiting.startswith("all_reduce #1") for rank in world.ranks)
    cut.heal()
    cut.heal()

    result = world.finish()

    assert 1_202_000 * MS < result.virtual_time_ns < 1_203_000 * MS
    reported = [event.data["text"] for event in result.events if event.kind == "fault"]
    assert reported == ["the network splits: ranks 0, 1 | 2", "the network heals: ranks 0, 1 | 2"]


def test_passes_with_a_partition_that_outlasts_the_timeout(sim: Sim) -> None:
    world = sim.start(train, world_size=2, kwargs={"timeout_s": 5})
    world.advance("1500ms")
    sim.partition([0], [1])

    result = world.finish(check=False)

    assert all("Timed out waiting 5000ms" in str(rank.exception) for rank in result.ranks)


def test_passes_with_messages_held_and_released(sim: Sim) -> None:
    free = sim.run(receive, world_size=2).values[1]
    hold = sim.hold(0, 1)
    world = sim.start(receive, world_size=2)
    world.advance("7s")
    assert world.ranks[1].waiting == "recv(src=0, tag=0) in group '0'"
    hold.release()

    got = world.finish().values[1]

    begin = free[0][1] - 50_001  # the first leaves when both ends are ready, and takes 1 ns and 50 us
    assert [number for number, _ in got] == [0.0, 1.0, 2.0]
    assert [when - 7000 * MS for _, when in got] == [when - begin for _, when in free]


def test_passes_with_messages_held_one_way_only(sim: Sim) -> None:
    def both() -> int:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        box = torch.zeros(1)
        requests = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(box, 1 - rank)]
        times = []
        for request in reversed(requests):
            assert request is not None
            request.wait()
            times.append(time.monotonic_ns())
        return times[0]

    sim.hold(0, 1, until="3s")

    zero, one = sim.run(both, world_size=2).values

    assert zero < 10 * MS
    assert one == 3000 * MS + 50_001


def test_passes_with_messages_released_from_a_rank(sim: Sim) -> None:
    hold = sim.hold(0, 1, both_ways=True)

    def releases() -> int:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.zeros(1), 0)
        else:
            time.sleep((4000 * MS - time.monotonic_ns()) / 1e9)
            hold.release()
        return time.monotonic_ns()

    result = sim.run(releases, world_size=3)

    assert result.values[1] == 4000 * MS + 50_001


def test_passes_with_a_hold_inside_a_collective(sim: Sim) -> None:
    world = sim.start(train, world_size=4)
    world.advance("1100ms")
    hold = sim.hold(2, 1)  # the ring sends to the rank below
    world.advance("10s")
    assert all(rank.waiting.startswith("all_reduce #1") for rank in world.ranks)
    hold.release()

    result = world.finish()

    assert 12_000 * MS < result.virtual_time_ns < 12_200 * MS


def test_passes_with_a_message_that_had_left_before_the_hold(sim: Sim) -> None:
    world = sim.start(receive, world_size=2)
    world.advance_to("260us")
    assert world.ranks[1].last_operation == "recv #0 in group '0'"
    sim.hold(0, 1)
    world.advance("1s")

    assert world.ranks[1].last_operation == "recv #1 in group '0'"  # the first arrived, the second is held
