"""The summary of a run that is compared."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.faults import Crash
from simdist.hardware.compare._account import account_of, template


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[/a/b/pair.cc:553] Connection closed by peer [127.0.0.1]:40001.", "Connection closed by peer [10.0.0.7]:9."),
        ("remote=[127.0.0.1]:48549$2", "remote=[::1]:1$7"),
        ("listen on port: 29500", "listen on port: 31000"),
        ("object at 0x7f00deadbeef", "object at 0x7fffffffffff"),
        ("no\nmore   than blanks", "no more than blanks"),
    ],
)
def test_what_differs_from_run_to_run_is_no_part_of_a_template(one: str, other: str) -> None:
    assert template(one) == template(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Timed out waiting 2000ms for recv operation", "Timed out waiting 2000ms for send operation"),
        ("Timed out waiting 2000ms for recv operation", "Timed out waiting 2001ms for recv operation"),
        ("Rank 1 failed to pass monitoredBarrier", "Rank 2 failed to pass monitoredBarrier"),
        ("Connection closed by peer [127.0.0.1]:1", "Connection reset by peer [127.0.0.1]:1"),
    ],
)
def test_what_a_rank_is_shown_stays_in_the_template(one: str, other: str) -> None:
    assert template(one) != template(other)


def test_durations_are_counted_back_into_virtual_time() -> None:
    assert template("Timed out waiting 1800ms for recv", scale=0.001) == template(
        "Timed out waiting 1800000ms for recv"
    )
    assert template("Timed out after 3 seconds", scale=0.5) == template("Timed out after 6 seconds")


def reduce_three_times() -> list[float]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    values = torch.ones(4)
    for step in range(3):
        simdist.step(step)
        dist.all_reduce(values)
    return values.tolist()


def test_an_account_reports_each_ranks_operations_results_and_errors() -> None:
    fault = Crash(rank=1, op="all_reduce", nth=3)
    result = simdist.run(reduce_three_times, world_size=3, faults=[fault], record_results=True)

    account = account_of(result, {})

    assert account.outcomes == {0: "raised", 1: "killed by signal 9", 2: "raised"}
    assert [len(account.operations[rank, 0]) for rank in range(3)] == [3, 2, 3]
    assert account.operations[0, 0][0] == ("all_reduce", "0", 0, 16, "float32", (4,), -1)
    assert account.steps[1, 0] == [0, 1, 2]
    assert account.faults == ["rank 1 dies of SIGKILL (life 0)"]
    assert list(account.errors[0, 0]) == [("all_reduce", "0", 2)]
    assert account.results[0, 0]["all_reduce", "0", 1] == account.results[1, 0]["all_reduce", "0", 1]
    assert account.exceptions[0] == f"RuntimeError: {account.errors[0, 0]['all_reduce', '0', 2].split(': ', 1)[1]}"
    assert account.cut == frozenset()


def test_lives_that_the_launcher_ended_are_cut_but_not_that_of_the_victim() -> None:
    fault = Crash(rank=1, op="all_reduce", nth=2)
    result = simdist.run(reduce_three_times, world_size=3, faults=[fault], max_restarts=1)

    account = account_of(result, {})

    assert account.restarts == 1
    assert account.cut == {(0, 0), (2, 0)}
    assert account.outcomes == {0: "returned", 1: "returned", 2: "returned"}
