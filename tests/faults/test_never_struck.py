"""A fault that never struck fails the run, unless it is optional."""

from __future__ import annotations

import json

import pytest

import simdist
from simdist.errors import FaultError, RunFailedError
from simdist.faults import Crash, Hang, Partition, SlowRank
from tests.faults.programs import MS, run


def nothing(rank: int = 0) -> None:
    pass


def test_each_fault_has_its_account() -> None:
    faults = [
        Hang(rank=1, op="all_reduce", nth=2, duration_ns=MS, name="pause"),
        Crash(rank=0, at_step=7, optional=True),
    ]
    result = run(*faults)

    pause, crash = result.faults
    assert (pause.called, pause.kind, pause.rank, pause.required) == ("'pause' (hang of rank 1)", "hang", 1, True)
    assert pause.struck
    assert pause.ended == ((1, 0, "hung"),)
    assert (crash.call, crash.required, crash.struck_ns) == ("Crash(rank=0, at_step=7, optional=True)", False, ())
    assert result.ok
    assert json.loads(json.dumps(result.summary()))["faults"][1] == {
        "fault": "Crash(rank=0, at_step=7, optional=True)",
        "kind": "crash",
        "rank": 0,
        "required": False,
        "struck_ns": [],
    }


def test_equal_faults_are_accounted_for_one_by_one() -> None:
    result = run(*[Crash(rank=0, at_step=1, life=0)] * 2)

    assert [fault.struck for fault in result.faults] == [True, False]


def test_a_run_is_not_ok_if_a_fault_never_struck() -> None:
    result = run(
        Crash(rank=1, at_step=9), SlowRank(rank=0, delay_ns=1), Partition(groups=((0,), (1, 2)), start_ns=10**12)
    )

    assert all(rank.ok for rank in result.ranks)
    assert not result.ok
    with pytest.raises(RunFailedError) as caught:
        result.raise_for_failure()
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        "every rank did well, but what 2 faults wait for did not happen; "
        "one that need not strike is given optional=True"
    )
    assert [line for line in lines if line.startswith("never")] == [
        "never struck: Crash(rank=1, at_step=9)",
        "never struck: Partition(groups=((0,), (1, 2)), start_ns=1000000000000)",
    ]


def test_a_failure_of_ranks_comes_first_and_reports_it_as_well() -> None:
    result = run(Crash(rank=1, at_step=1), Crash(rank=1, at_step=2))

    with pytest.raises(RunFailedError, match=r"\nnever struck: Crash\(rank=1, at_step=2\)\n") as caught:
        result.raise_for_failure()
    assert str(caught.value).startswith("3 of 3 ranks failed, rank 1 first: was killed by SIGKILL")


def test_processes_that_were_spawned_fail_for_it_too() -> None:
    with pytest.raises(RunFailedError, match=r"never struck: Crash\(rank=1, nth=3\)"):
        simdist.spawn(nothing, nprocs=2, faults=[Crash(rank=1, nth=3)])
    simdist.spawn(nothing, nprocs=2, faults=[Crash(rank=1, nth=3, optional=True)])


def test_what_is_spawned_has_one_life_only() -> None:
    with pytest.raises(FaultError) as caught:
        simdist.spawn(nothing, nprocs=2, faults=[Crash(rank=1, nth=3, life=1)])

    assert caught.value.problems == ("faults[0].life: 1 never comes: with max_restarts = 0 the last life is 0",)
