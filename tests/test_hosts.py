"""Hosts that go down with all processes on them, and come back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import Host, Network, build
from simdist.result import RunResult
from simdist.world import World, WorldSpec

SECOND = 10**9


class Thing:
    """Lives on a host, and records when it dies."""

    def __init__(self, name: str, log: list[str], *, has_baton: bool = False) -> None:
        self.has_baton = has_baton
        self._name = name
        self._log = log

    def kill(self, signal: int) -> None:
        self._log.append(f"{self._name} {signal}")


@pytest.fixture
def network() -> Network:
    return Network(build(4, hosts=2))


def test_a_host_goes_down_with_all_that_lives_on_it_the_one_that_runs_last(network: Network) -> None:
    host, log = Host("host0", [0, 1], network), list[str]()
    host.residents += [Thing("a", log, has_baton=True), Thing("b", log), Thing("c", log)]
    host.listeners.append(lambda which: log.append(repr(which)))

    host.crash(now_ns=5)
    host.crash(now_ns=6)

    assert log == ["<Host host0 life 0 down>", "b 9", "c 9", "a 9"]
    assert host.residents == []


def test_nothing_passes_to_or_from_a_host_that_is_down(network: Network) -> None:
    host = Host("host0", [0, 1], network)

    host.crash(now_ns=5)
    down = [network.open_from_ns(src, dst, 7) for src, dst in ((0, 2), (2, 0), (0, 1), (2, 3))]
    host.boot(now_ns=100)
    host.boot(now_ns=200)

    assert down == [None, None, 7, 7]
    assert network.open_from_ns(2, 0, 7) == 100
    assert (host.up, host.life) == (True, 1)


class Driven:
    """A world on two hosts of two ranks, which runs in parts."""

    def __init__(self, call: Callable[[int], Any], **settings: Any) -> None:
        cluster = simdist.cluster.build(4, hosts=2)
        self.world = World(WorldSpec(call=call, world_size=4, cluster=cluster, **settings))
        self.world.start()

    def crash(self, name: str, at_ns: int) -> None:
        self.world.advance(at_ns)
        self.world.hosts[name].crash(self.world.now_ns)

    def boot(self, name: str, at_ns: int) -> None:
        self.world.advance(at_ns)
        self.world.hosts[name].boot(self.world.now_ns)

    def finish(self) -> RunResult:
        return self.world.finish()


@pytest.fixture
def driven() -> Iterator[Callable[..., Driven]]:
    made: list[Driven] = []

    def make(call: Callable[[int], Any], **settings: Any) -> Driven:
        made.append(Driven(call, **settings))
        return made[-1]

    yield make
    for each in made:
        each.world.close()


def meets(rank: int) -> float:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    time.sleep(3)
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def test_peers_on_other_hosts_hear_nothing_and_time_out(driven: Callable[..., Driven]) -> None:
    run = driven(meets)
    run.crash("host1", SECOND)
    result = run.finish()

    assert [rank.status for rank in result.ranks] == ["raised", "raised", "killed", "killed"]
    assert [rank.exit_code for rank in result.ranks[2:]] == [-9, -9]
    assert [rank.ended_ns for rank in result.ranks[2:]] == [SECOND, SECOND]
    # Real Gloo's error for a silent peer, 20 s after the call.
    assert all("Timed out waiting 20000ms" in str(rank.exception) for rank in result.ranks[:2])
    assert result.virtual_time_ns == result.ranks[0].ended_ns == 23_001_200_000


def test_peers_find_their_connections_closed_when_the_host_is_up_again(driven: Callable[..., Driven]) -> None:
    run = driven(meets)
    run.crash("host1", SECOND)
    run.boot("host1", 10 * SECOND)
    result = run.finish()

    first = result.ranks[0]
    assert "Connection closed by peer" in str(first.exception) or "Connection reset by peer" in str(first.exception)
    assert 10 * SECOND <= first.ended_ns < 11 * SECOND


def test_a_restart_waits_until_the_host_is_back(driven: Callable[..., Driven]) -> None:
    lives: list[tuple[str, int]] = []

    def body(rank: int) -> float:
        lives.append((os.environ["TORCHELASTIC_RESTART_COUNT"], time.monotonic_ns()))
        return meets(rank)

    run = driven(body, max_restarts=1)
    run.crash("host1", SECOND)
    run.boot("host1", 60 * SECOND)
    result = run.finish()

    assert result.restarts == 1
    assert result.values == [4.0] * 4
    assert lives == [("0", 0)] * 4 + [("1", 61 * SECOND)] * 4


def test_without_the_host_there_is_no_restart(driven: Callable[..., Driven]) -> None:
    run = driven(meets, max_restarts=1)
    run.crash("host1", SECOND)
    result = run.finish()

    assert result.restarts == 0
    assert [rank.status for rank in result.ranks] == ["killed"] * 4


def test_the_launchers_store_goes_with_the_first_host(driven: Callable[..., Driven]) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("gloo")
        time.sleep(3)
        dist.distributed_c10d._get_default_store().get("nobody sets it")

    run = driven(body)
    run.crash("host0", SECOND)
    result = run.finish()

    assert [rank.status for rank in result.ranks] == ["killed", "killed", "raised", "raised"]
    assert "DistNetworkError" in type(result.ranks[2].exception).__name__


def test_a_process_knows_its_host(driven: Callable[..., Driven]) -> None:
    run = driven(lambda rank: None)

    assert [process.host.name for process in run.world.processes] == ["host0", "host0", "host1", "host1"]
    assert run.world.processes[0].host is run.world.hosts["host0"]


def test_ranks_that_begin_again_when_the_host_is_back_find_a_calm_network(
    driven: Callable[..., Driven],
) -> None:
    run = driven(meets, max_restarts=1)
    run.crash("host1", SECOND)
    run.boot("host1", 60 * SECOND)
    result = run.finish()

    # One end for all ranks, by the closed form; followed message by message each rank would have its own end.
    assert [event.rank for event in result.events if event.kind == "complete"] == [-1]
