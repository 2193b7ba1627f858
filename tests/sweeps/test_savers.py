"""The examples of ways to keep a checkpoint: a bad one fails at the expected crash, its repaired version does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios.workloads.savers import BROKEN
from simdist.faults import Crash, Fault, HostCrash
from simdist.scenario import Plan, fault_text, load, run_scenario
from simdist.sweeps import Tries, sweep_plan

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "sweep_savers.toml")
THREADED = ("live_tensors", "copied")  # they save while the next step is under way

_NO_POWER: dict[str, Any] = {"rank": 0, "all_hosts": True, "down_ns": 1_000_000_000}
_SAVED = Crash(rank=0, op="fsync_dir", nth=1)  # the first checkpoint has its name
# The crash, the expectation that fails, and a part of the report.
FOUND: dict[str, tuple[Fault, str, str]] = {
    "in_place": (Crash(rank=0, op="write", nth=1), "outcomes", "raised EOFError"),
    "no_fsync": (
        HostCrash(op="rename", when="after", outcome=0, **_NO_POWER),
        "outcomes",
        "raised EOFError",
    ),
    "no_folder_fsync": (HostCrash(at_step=1, outcome=1, **_NO_POWER), "max_steps_lost", "1 step was lost"),
    "no_optimizer": (_SAVED, "same_as_without_faults", "['weights']"),
    "no_scaler": (_SAVED, "same_as_without_faults", "['weights']"),
    "no_generator": (_SAVED, "same_as_without_faults", "['weights']"),
    "no_sampler": (_SAVED, "same_as_without_faults", "['weights']"),
    "step_apart": (_SAVED, "same_as_without_faults", "['weights']"),
    "removed_first": (Crash(rank=0, at_step=1, op="create", nth=1), "max_steps_lost", "1 step was lost"),
    "latest_first": (Crash(rank=1, op="create", nth=1), "outcomes", "rank 1 raised FileNotFoundError"),
    "live_tensors": (Crash(rank=0, op="fsync_dir", nth=2), "same_as_without_faults", "['weights']"),
    "trusts_local": (HostCrash(at_step=1, disks="swapped", **_NO_POWER), "same_as_without_faults", "['seen']"),
}


def _plan(way: str, *overrides: str) -> Plan:
    lost = ["expect.max_steps_lost=1"] if way in THREADED else []
    return load(SCENARIO, overrides=[f"workload.kwargs.way={way}", "workload.kwargs.steps=3", *lost, *overrides])


def _failed(way: str, fault: Fault) -> dict[str, str]:
    report = run_scenario(_plan(way, f"faults=[{fault_text(fault)}]"))
    return {verdict.name: verdict.evidence for verdict in report.verdicts if not verdict.ok}


def test_every_broken_way_is_looked_at() -> None:
    assert list(FOUND) == list(BROKEN)


@pytest.mark.parametrize("way", BROKEN)
def test_a_crash_shows_what_is_wrong_with_a_way(way: str) -> None:
    fault, name, said = FOUND[way]

    assert said in _failed(way, fault)[name]


@pytest.mark.parametrize("way", BROKEN)
def test_the_repaired_twin_comes_back_from_the_same_crash(way: str) -> None:
    fault, _, _ = FOUND[way]

    assert _failed(BROKEN[way], fault) == {}


@pytest.mark.parametrize("way", sorted(set(BROKEN.values())))
def test_a_repaired_way_comes_back_from_crashes_all_over_the_run(way: str) -> None:
    report = sweep_plan(_plan(way), Tries(outcomes=2, limit=4), workers=1)

    assert report.wrong == ()
    assert [each.account for each in report.failures] == []
    assert len(report.cases) == 4
