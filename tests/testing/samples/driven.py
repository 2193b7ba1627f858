"""Tests that drive worlds from outside with the fixture `sim`. Each has the outcome that its name says."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import FaultError, RunFailedError, SimdistError
from simdist.faults import Crash, RankFault, StruckRank
from simdist.testing import Sim

MS = 1_000_000


def train(steps: int = 3, timeout_s: float = 1800) -> int:
    """A second of work and an all_reduce in each step; returns the virtual time of the end."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
    for step in range(steps):
        simdist.step(step)
        time.sleep(1)
        dist.all_reduce(torch.ones(1))
    return time.monotonic_ns()


def receive(count: int = 3) -> list[tuple[float, int]]:
    """Rank 0 sends numbers to rank 1, which reports what came and when."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        for number in range(count):
            dist.send(torch.tensor([float(number)]), 1)
        return []
    box, got = torch.zeros(1), []
    for _ in range(count):
        dist.recv(box, 0)
        got.append((box.item(), time.monotonic_ns()))
    return got


def keep_on(steps: int = 3) -> tuple[list[tuple[str, int]], int]:
    """A second of work and an all_reduce in each step, called again after an error; the errors, and when it ended."""
    dist.init_process_group("gloo")
    heard = []
    for _ in range(steps):
        time.sleep(1)
        try:
            dist.all_reduce(torch.ones(1))
        except (ValueError, dist.DistNetworkError) as error:
            heard.append((str(error), time.monotonic_ns()))
            dist.all_reduce(torch.ones(1))
    return heard, time.monotonic_ns()


def ask_store() -> list[int]:
    """A second of work and a request to the launcher's store, three times; when each answer came."""
    dist.init_process_group("gloo")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store: Any = dist.TCPStore(address, port, None, False, timedelta(seconds=30))  # type: ignore[attr-defined]  # torch exports it without saying so
    times = []
    for number in range(3):
        time.sleep(1)
        store.set("number", str(number))
        times.append(time.monotonic_ns())
    return times


# -- worlds ------------------------------------------------------------------------------------------------------------


def test_passes_with_results_of_each_rank(sim: Sim) -> None:
    result = sim.run(lambda value: value * 2, args=("a",), world_size=3)

    assert result.ok
    assert result.values == ["aa"] * 3


@pytest.mark.simdist(world_size=5, backend="sim", seeds=[7])
def test_passes_with_defaults_from_the_marker(sim: Sim) -> None:
    result = sim.run(lambda: dist.get_backend(), init=True)

    assert result.values == ["sim"] * 5
    assert result.seed == sim.seed == 7
    assert sim.run(train, kwargs={"steps": 1}, backend="gloo", world_size=2, seed=3).seed == 3


def test_passes_with_a_failure_raised_as_it_was(sim: Sim) -> None:
    error = ValueError("bad", [7])

    def fails() -> None:
        if dist.get_rank() == 1:
            raise error

    with pytest.raises(ValueError, match="bad") as caught:
        sim.run(fails, world_size=2, init=True)
    assert caught.value is error


def test_passes_with_a_failure_that_is_looked_at(sim: Sim) -> None:
    def leaves() -> None:
        sys.exit(3)

    result = sim.run(leaves, world_size=2, check=False)

    assert [rank.exit_code for rank in result.ranks] == [3, 3]
    with pytest.raises(RunFailedError, match="rank 0 left with exit code 3"):
        sim.run(leaves, world_size=2)


def test_fails_because_a_rank_failed(sim: Sim) -> None:
    sim.run(lambda: 1 // 0, world_size=2)


def test_passes_with_the_output_of_all_ranks_in_order(sim: Sim, capsys: pytest.CaptureFixture[str]) -> None:
    def speaks(rank: int) -> None:
        time.sleep(3 - rank)
        print("rank", rank)
        sys.stdout.write("no end")

    sim.run(lambda: speaks(int(__import__("os").environ["RANK"])), world_size=3)

    assert capsys.readouterr().out == "rank 2\nrank 1\nrank 0\n" + "no end" * 3


# -- faults before the run -------------------------------------------------------------------------------------------


def test_passes_with_a_crash_at_a_time(sim: Sim) -> None:
    sim.crash(2, at="1.5s")

    result = sim.run(train, world_size=3, check=False)

    assert [rank.status for rank in result.ranks] == ["raised", "raised", "killed"]
    assert result.ranks[2].ended_ns == 1500 * MS
    assert sim.run(train, world_size=3).ok  # a fault belongs to one world


def test_passes_with_a_crash_at_an_operation(sim: Sim) -> None:
    sim.crash(0, op="all_reduce", nth=2, when="during", exit_code=4)
    sim.crash(1, step=0, life=None, signal="SIGTERM")

    result = sim.run(train, world_size=2, check=False)

    assert result.ranks[1].exit_code == -15


def test_passes_with_a_slow_rank_and_a_slow_link(sim: Sim) -> None:
    quick = sim.run(train, world_size=2).virtual_time_ns
    sim.slow(0, "2s")
    late = sim.run(train, world_size=2).virtual_time_ns
    sim.delay(0, 1, "100ms", start="1ms", until="5s")
    later = sim.run(train, world_size=2).virtual_time_ns

    assert late == quick + 3 * 2000 * MS
    assert quick + 600 * MS < later < quick + 800 * MS


def test_passes_with_a_partition_that_heals(sim: Sim) -> None:
    sim.partition([0], [1, 2], start="1ms", until="10s")

    result = sim.run(train, world_size=3)

    assert 12_000 * MS < result.virtual_time_ns < 12_100 * MS


def test_passes_with_a_hang_that_ends(sim: Sim) -> None:
    sim.hang(1, step=1, duration="5s")

    result = sim.run(train, world_size=2)

    assert 8000 * MS < result.virtual_time_ns < 8100 * MS


def test_passes_with_an_exception_that_the_program_survives(sim: Sim) -> None:
    sim.raise_in(1, "ValueError", "no", op="all_reduce", nth=2)

    result = sim.run(keep_on, world_size=2)

    assert result.values == [([], 3_000_650_006), ([("no", 2_000_350_002)], 3_000_650_006)]


def test_passes_with_an_exception_in_a_step(sim: Sim) -> None:
    sim.raise_in(1, step=2)

    result = sim.run(train, world_size=2, check=False)

    assert [rank.status for rank in result.ranks] == ["raised", "raised"]
    assert str(result.ranks[1].exception) == "injected by a fault"
    assert result.ranks[1].ended_ns == 2_000_500_004
    assert "Connection closed by peer" in str(result.ranks[0].exception)


def test_passes_with_a_slow_store(sim: Sim) -> None:
    sim.delay_store("100ms", rank=1, start="1500ms")

    result = sim.run(ask_store, world_size=2)

    assert result.values == [
        [1_000_200_000, 2_000_200_000, 3_000_200_000],
        [1_000_200_000, 2_100_200_000, 3_200_200_000],
    ]


def test_passes_with_a_lost_store(sim: Sim) -> None:
    sim.lose_store(at="1500ms")

    result = sim.run(ask_store, world_size=2, check=False)

    # As with any connection: what is written first is lost in silence.
    assert [(str(rank.exception), rank.ended_ns) for rank in result.ranks] == [("Broken pipe", 3_000_200_000)] * 2


def test_passes_with_no_store_from_the_start(sim: Sim) -> None:
    sim.lose_store()

    result = sim.run(ask_store, world_size=2, check=False)

    assert [type(rank.exception) for rank in result.ranks] == [dist.DistNetworkError] * 2
    assert [rank.ended_ns for rank in result.ranks] == [30_001_200_000] * 2


def test_passes_with_a_loss_that_is_called_off(sim: Sim) -> None:
    sim.lose_store(at="1s").lift()

    assert sim.run(ask_store, world_size=2).values == [[1_000_200_000, 2_000_200_000, 3_000_200_000]] * 2


def test_passes_with_faults_of_the_marker_and_of_the_test(sim: Sim) -> None:
    sim.hang(0, at="1s", duration="1s")

    result = sim.run(train, world_size=2, faults=[Crash(rank=1, at_ns=1500 * MS)], check=False)

    reported = [event.data["text"] for event in result.events if event.kind == "fault"]
    assert reported == ["rank 0 hangs for 1000 ms", "rank 1 dies of SIGKILL"]


def test_fails_because_the_fault_never_struck(sim: Sim) -> None:
    sim.crash(1, step=99)
    sim.run(train, world_size=2)


def test_fails_because_a_fault_given_on_the_way_never_struck(sim: Sim) -> None:
    with sim.start(train, world_size=2) as world:
        world.advance("1s")
        sim.crash(1, op="barrier")
        world.finish()


def test_passes_with_a_fault_that_need_not_strike(sim: Sim) -> None:
    sim.crash(1, step=99, optional=True)
    assert sim.run(train, world_size=2).faults[0].struck_ns == ()


def test_passes_with_a_fault_that_was_lifted_before_it_could_strike(sim: Sim) -> None:
    with sim.start(train, world_size=2) as world:
        handle = sim.crash(1, step=99)
        world.advance("1s")
        handle.lift()
        assert world.finish().ok


class Unplugged(RankFault):
    """Somebody stumbles over a cable."""

    def strike(self, rank: StruckRank) -> None:
        """No word of farewell."""
        rank.exit(7)


def test_passes_with_a_fault_of_its_own(sim: Sim) -> None:
    sim.hang(0, step=1, duration="1ms", name="pause")
    sim.give(Unplugged(rank=1, after="pause"))
    result = sim.run(train, world_size=2, check=False)

    assert result.ranks[1].exit_code == 7
    assert [fault.struck for fault in result.faults] == [True, True]


def test_passes_with_every_word_of_a_trigger(sim: Sim) -> None:
    sim.hang(0, at="1s", period="500ms", probability=1.0, duration="1ms")
    sim.raise_in(1, "ValueError", point="nowhere", every=2, optional=True)
    sim.slow(1, "1ms", start="1s", after="late")
    sim.hang(1, at="1s", duration="1ms", name="late")
    result = sim.run(train, world_size=2)

    assert [len(fault.struck_ns) > 0 for fault in result.faults] == [True, False, True, True]


def test_passes_with_the_words_of_the_fault_classes(sim: Sim) -> None:
    assert sim.crash(1, at_step=3, optional=True).fault == sim.crash(1, step=3, optional=True).fault
    assert sim.hang(0, at_point="a", optional=True).fault == sim.hang(0, point="a", optional=True).fault
    with pytest.raises(TypeError, match=r"crash\(\) got 'step' and 'at_step', which are one; give one of them"):
        sim.crash(1, step=3, at_step=3)
    sim.run(train, world_size=2, check=False)


def test_passes_with_a_word_that_is_none(sim: Sim) -> None:
    with pytest.raises(TypeError, match=r"crash\(\) got an unexpected keyword argument 'setp'; did you mean 'step'\?"):
        sim.crash(1, setp=3)  # type: ignore[call-arg]
    with sim.start(train, world_size=2):
        with pytest.raises(FaultError, match="no fault is called 'x'; none has a name"):
            sim.crash(1, after="x")
        with pytest.raises(FaultError, match="life: 1 never comes"):
            sim.crash(1, step=1, life=1)


def test_error_because_no_world_came_after_the_fault(sim: Sim) -> None:
    sim.crash(1, at="1s")


def test_fails_because_a_fault_does_not_fit_its_world(sim: Sim) -> None:
    sim.crash(7, at="1s")
    sim.run(train, world_size=2)


def test_passes_with_bad_faults_refused(sim: Sim) -> None:
    with pytest.raises(FaultError, match="no trigger; give a time, a step, a point or an operation"):
        sim.crash(0)
    with pytest.raises(ValueError, match="'soon' is no duration"):
        sim.hang(0, at="soon")
    with pytest.raises(FaultError, match="a rank has no link to itself"):
        sim.hold(1, 1)
    with pytest.raises(FaultError, match="unknown exception 'ShardError'; expected one of Python's"):
        sim.raise_in(0, "ShardError")
    with pytest.raises(FaultError, match="until_ns: ends before it starts"):
        sim.delay_store("5ms", start="2s", until="1s")
    sim.crash(7, at="1s")
    with pytest.raises(FaultError, match="rank 7 is outside the world of 2 ranks"):
        sim.run(train, world_size=2)
    sim.run(train, world_size=8, check=False)


def test_passes_with_bad_keywords_refused(sim: Sim) -> None:
    with pytest.raises(SimdistError, match="world_siz: unknown keyword; did you mean 'world_size'") as caught:
        sim.run(train, world_siz=2, policy="lifo", seeds=3)  # type: ignore[call-arg]
    assert "3 problems" in str(caught.value)
    assert "seeds: a world has one seed" in str(caught.value)


@pytest.mark.simdist(world_size=2, init=True)
def test_passes_with_a_group_where_the_marker_says_so(sim: Sim) -> None:
    assert sim.run(lambda: dist.get_world_size()).values == [2, 2]


# -- the host ----------------------------------------------------------------------------------------------------------


def test_passes_with_generators_and_streams_of_its_own(sim: Sim, capsys: pytest.CaptureFixture[str]) -> None:
    def draws() -> list[Any]:
        drawn: list[Any] = []
        for _ in range(3):
            drawn += [random.random(), torch.rand(1).item()]
            time.sleep(1)
        return drawn

    alone = sim.run(draws, world_size=2).values
    random.seed(5)
    torch.manual_seed(5)
    expected = [random.random(), random.random(), torch.rand(1).item()]
    random.seed(5)
    torch.manual_seed(5)
    before = random.random()
    world = sim.start(draws, world_size=2)
    world.advance("500ms")
    between = random.random()
    print("the host speaks")
    world.advance("1s")
    result = world.finish()

    assert [before, between, torch.rand(1).item()] == expected
    assert result.values == alone
    assert capsys.readouterr().out == "the host speaks\n"
    assert time.time() > 1e9


def test_passes_with_a_world_left_behind(sim: Sim) -> None:
    sim.start(train, world_size=3).advance("1s")


def test_passes_because_no_thread_is_left() -> None:
    assert threading.active_count() == 1
    assert not dist.is_initialized()


def test_fails_with_a_world_left_behind(sim: Sim) -> None:
    sim.start(train, world_size=3).advance("1s")
    raise AssertionError


def test_passes_because_no_thread_is_left_again() -> None:
    assert threading.active_count() == 1
    simdist.run(train, world_size=2)
