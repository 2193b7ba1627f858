"""A machine that loses power, and starts again or does not."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import FaultError
from simdist.faults import HostCrash
from simdist.faults import Machine as RealMachine
from simdist.result import RunResult

SECOND = 10**9


def trains() -> float:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    for step in range(3):
        simdist.step(step)
        time.sleep(1)
        dist.all_reduce(torch.ones(1))
    return time.monotonic()


def run(faults: Sequence[HostCrash], body: Any = trains, **settings: Any) -> RunResult:
    return simdist.run(body, world_size=4, cluster=simdist.cluster.build(4, hosts=2), faults=faults, **settings)


def test_all_processes_of_the_host_die_and_the_others_hear_nothing() -> None:
    result = run([HostCrash(rank=3, at_ns=1_500_000_000)])

    assert [(rank.status, rank.exit_code) for rank in result.ranks[2:]] == [("killed", -9)] * 2
    assert [rank.ended_ns for rank in result.ranks[2:]] == [1_500_000_000] * 2
    assert [rank.status for rank in result.ranks[:2]] == ["raised"] * 2
    assert all("Timed out waiting 20000ms" in str(rank.exception) for rank in result.ranks[:2])
    assert result.ranks[0].ended_ns > 21 * SECOND


def test_the_report_says_what_happened_to_whom() -> None:
    result = run([HostCrash(rank=3, at_ns=SECOND // 2, down_ns=5 * SECOND)])

    reported = [event.data["text"] for event in result.events if event.kind == "fault"]
    assert reported == ["the host of rank 3 goes down for 5000 ms", "the host of rank 3 is up again"]
    (fault,) = result.faults
    assert fault.struck_ns == (SECOND // 2,)
    assert fault.ended == ((2, 0, "killed"), (3, 0, "killed"))


@pytest.mark.parametrize("trigger", [{"nth": 2}, {"at_step": 1}, {"at_ns": 2 * SECOND}])
def test_every_trigger_of_a_rank_brings_its_host_down(trigger: dict[str, Any]) -> None:
    result = run([HostCrash(rank=2, **trigger)])

    assert [rank.status for rank in result.ranks] == ["raised", "raised", "killed", "killed"]


def test_a_restart_comes_when_the_host_is_back() -> None:
    result = run([HostCrash(rank=2, at_step=1, down_ns=60 * SECOND)], max_restarts=1)

    assert result.restarts == 1
    assert [rank.status for rank in result.ranks] == ["returned"] * 4
    assert all(value > 62 for value in result.values)


def test_a_host_that_never_comes_back_is_not_waited_for_by_the_world() -> None:
    result = run([HostCrash(rank=2, at_step=1)], max_restarts=1)

    assert result.restarts == 0
    assert [rank.status for rank in result.ranks] == ["killed"] * 4


def test_the_same_run_has_the_same_events() -> None:
    faults = [HostCrash(rank=1, at_step=1, down_ns=3 * SECOND)]

    assert run(faults, max_restarts=1).digest == run(faults, max_restarts=1).digest


def test_a_world_on_one_host_ends_with_it() -> None:
    result = simdist.run(lambda: time.sleep(5), world_size=3, faults=[HostCrash(rank=0, at_ns=SECOND)])

    assert [rank.ended_ns for rank in result.ranks] == [SECOND] * 3
    assert os.getpid() > 0


def test_what_is_wrong_with_it_is_reported() -> None:
    with pytest.raises(FaultError, match="rank 7 is outside the world of 4 ranks"):
        run([HostCrash(rank=7, at_ns=1)])


def test_no_real_machine_is_switched_off() -> None:
    fault = HostCrash(rank=0, at_ns=1)

    assert fault.real_obstacle(RealMachine("gloo", 1, 0)) == "no machine is switched off for a run"
