"""torch's distributed checkpoints: two weaknesses of torch 2.13, measured on real disks, and a workaround."""

from __future__ import annotations

from pathlib import Path

import pytest

from simdist.faults import Crash, Fault, HostCrash
from simdist.scenario import ScenarioReport, fault_text, load, run_scenario
from tests.builds import VERSION

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "sweep_dcp.toml")


def _run(fault: Fault, *settings: str) -> ScenarioReport:
    overrides = ["world_size=2", f"faults=[{fault_text(fault)}]", *(f"workload.kwargs.{each}" for each in settings)]
    return run_scenario(load(SCENARIO, overrides=overrides))


def _power_loss_after(op: str, nth: int, outcome: int) -> HostCrash:
    return HostCrash(rank=0, op=op, nth=nth, when="after", all_hosts=True, down_ns=1_000_000_000, outcome=outcome)


def _failed(report: ScenarioReport) -> dict[str, str]:
    return {verdict.name: verdict.evidence for verdict in report.verdicts if not verdict.ok}


@pytest.mark.parametrize("way", ["in_background=false", "in_background=true", "in_process=true"])
def test_the_metadata_is_synced_before_its_bytes_are_written(way: str) -> None:
    report = _run(_power_loss_after("rename", 1, outcome=0), "sync=false", way)

    if VERSION >= (2, 14):  # torch 2.14 flushes them before
        assert report.ok, _failed(report)
        return
    assert "raised CheckpointException" in _failed(report)["outcomes"]
    left = {str(event.data["path"]): str(event.data["text"]) for event in report.result.events if event.kind == "disk"}
    assert left["checkpoint0/.metadata"].startswith("is empty, of ")


def test_shards_are_overwritten_under_metadata_that_is_still_valid() -> None:
    report = _run(Crash(rank=0, at_step=1, op="truncate"), "sync=false", "same_folder=true")

    assert list(_failed(report)) == ["same_as_without_faults"]  # it loads, with shards of two steps


@pytest.mark.parametrize("outcome", [0, 1, 2])
def test_a_checkpoint_that_gets_its_name_last_survives(outcome: int) -> None:
    report = _run(_power_loss_after("rename", 2, outcome))

    assert _failed(report) == {}
