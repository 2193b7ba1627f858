"""The advice in reports is what the repaired ways to keep a checkpoint do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simdist.scenario import load
from simdist.sweeps import Tries, sweep_plan

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "sweep_savers.toml")


@pytest.mark.parametrize(
    ("way", "strike", "cure"),
    [
        ("in_place", "rank", "write under another name"),
        ("no_fsync", "all", "os.fsync a file before it is renamed"),
        ("no_folder_fsync", "all", "os.fsync the folder"),
        ("no_optimizer", "rank", "save all that the next step depends on"),
        ("latest_first", "rank", "take away the old, and name the new one, only when all ranks have the new one"),
        ("trusts_local", "swap", "let all ranks agree on a checkpoint"),
    ],
)
def test_each_kind_of_loss_has_its_cure(way: str, strike: Any, cure: str) -> None:
    plan = load(SCENARIO, overrides=[f"workload.kwargs.way={way}", "workload.kwargs.steps=2"])

    report = sweep_plan(plan, Tries(strikes=(strike,), outcomes=2, limit=6), workers=1)

    assert [each[: len(cure)] for each in report.cures] == [cure]
    reported = report.kinds()
    assert sum(others + 1 for _, others in reported) == len(report.failures)
    assert len(reported) < 5
