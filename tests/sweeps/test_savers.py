"""The ways to keep a checkpoint that are examples: a sweep finds what is wrong with each, and nothing in its twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.workloads.savers import BROKEN
from simdist.scenario import load
from simdist.sweeps import Strike, SweepReport, sweep_plan

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "sweep_savers.toml")
THREADED = ("live_tensors", "copied")  # they save while the next step is under way

# What has to happen for the way to fail, and what is then told.
FOUND: dict[str, tuple[Strike, str, str]] = {
    "in_place": ("rank", "rank 0 died before write of last.pt", "raised EOFError"),
    "no_fsync": ("all", "after rename of last.tmp0 to last.pt", "last.pt is empty, of "),
    "no_folder_fsync": ("all", "after rename of last.tmp0 to last.pt", "last.pt is not there"),
    "no_optimizer": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
    "no_scaler": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
    "no_generator": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
    "no_sampler": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
    "step_apart": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
    "removed_first": ("rank", "rank 0 died before create of last.tmp0", "1 step was lost to a restart, at most 0"),
    "latest_first": ("rank", "rank 1 died before create of step1-rank1.tmp1", "raised FileNotFoundError"),
    "live_tensors": ("rank", "rank 0 died before fsync_dir of the disk", "final values equal: no"),
}


def _sweep(way: str, strikes: tuple[Strike, ...], outcomes: int, limit: int | None = None) -> SweepReport:
    overrides = [f"workload.kwargs.way={way}", f"workload.kwargs.steps={3 if way == 'no_scaler' else 2}"]
    if way in THREADED:
        overrides.append("expect.max_steps_lost=1")
    return sweep_plan(load(SCENARIO, overrides=overrides), strikes=strikes, workers=1, outcomes=outcomes, limit=limit)


def test_every_broken_way_is_looked_at() -> None:
    assert list(FOUND) == list(BROKEN)


@pytest.mark.parametrize("way", BROKEN)
def test_what_is_wrong_with_a_way_is_found(way: str) -> None:
    strike, moment, said = FOUND[way]

    report = _sweep(way, (strike,), outcomes=2)

    assert report.wrong == ()
    assert [each.account for each in report.failures if moment in each.account and said in each.account]


@pytest.mark.parametrize("way", sorted(set(BROKEN.values())))
def test_a_repaired_way_survives_every_crash(way: str) -> None:
    report = _sweep(way, ("rank", "host", "all"), outcomes=3, limit=24)

    assert report.wrong == ()
    assert [each.account for each in report.failures] == []
    assert len(report.cases) == 24
