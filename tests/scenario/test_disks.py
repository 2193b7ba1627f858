"""A scenario with a disk at "{tmp}", and its expectations about restarts."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from simdist.errors import ScenarioError
from simdist.faults import Crash, HostCrash
from simdist.scenario import fault_text, load, run_scenario

_PROGRAM = """
import os
import pathlib

import simdist


def train(folder, *, every):
    path = os.path.join(folder, "step")
    first = int(pathlib.Path(path).read_text()) if os.path.exists(path) else 0
    for step in range(first, 6):
        simdist.step(step)
        if (step + 1) % every == 0:
            with open(path + ".tmp", "w") as file:
                file.write(str(step + 1))
                file.flush()
                os.fsync(file.fileno())
            os.replace(path + ".tmp", path)
    return step
"""
_FILE = """
world_size = 1
max_restarts = 1
workload = {{ target = "program:train", args = ["{{tmp}}"], kwargs = {{ every = {every} }} }}

[disk]
{disk}

[[faults]]
kind = "host_crash"
rank = 0
step = 5
down = "1s"
{fault}

[expect]
max_steps_lost = 3
"""


def _write(folder: Path, *, every: int = 2, disk: str = "", fault: str = "") -> str:
    (folder / "program.py").write_text(_PROGRAM)
    path = folder / "scenario.toml"
    path.write_text(dedent(_FILE.format(every=every, disk=disk, fault=fault)))
    return str(path)


@pytest.mark.parametrize(
    ("every", "ok", "evidence"),
    [(2, True, "1 step was lost to a restart, at most 3"), (9, False, "5 steps were lost to a restart, at most 3")],
)
def test_the_steps_that_a_restart_repeats_are_counted(tmp_path: Path, every: int, ok: bool, evidence: str) -> None:
    report = run_scenario(load(_write(tmp_path, every=every, fault="outcome = 0")))

    (verdict,) = [each for each in report.verdicts if each.name == "max_steps_lost"]
    assert (verdict.ok, verdict.evidence) == (ok, evidence)


def test_an_outcome_that_loses_the_last_rename_loses_more(tmp_path: Path) -> None:
    report = run_scenario(load(_write(tmp_path, fault="outcome = 1")))

    assert [each.evidence for each in report.verdicts if each.name == "max_steps_lost"] == [
        "3 steps were lost to a restart, at most 3"
    ]


def test_a_disk_has_the_settings_of_the_file(tmp_path: Path) -> None:
    plan = load(
        _write(tmp_path, disk='profile = "xfs"\nlatency = "2ms"\nbandwidth = "1GB/s"\nlocal = true\nnames_late = "3s"')
    )

    assert plan.disk == {
        "profile": "xfs",
        "latency_ns": 2_000_000,
        "bandwidth": 1_000_000_000,
        "local": True,
        "local_profile": "ext4",
        "names_late_ns": 3_000_000_000,
    }


def test_what_is_wrong_with_a_disk_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(_write(tmp_path, disk='profile = "zfs"\nlatency = -1\nspeed = 2'))

    text = str(caught.value)
    assert "disk.profile: unknown 'zfs'" in text
    assert "disk.latency: " in text
    assert "disk.speed: unknown key" in text


def test_a_fault_is_written_as_a_file_has_it(tmp_path: Path) -> None:
    faults = (
        HostCrash(rank=0, op="storage", nth=3, when="after", down_ns=1_000_000_000, all_hosts=True, outcome=0),
        Crash(rank=0, at_step=2, at_ns=None, signal="SIGTERM"),
    )

    plan = load(_write(tmp_path), overrides=[f"faults=[{', '.join(fault_text(each) for each in faults)}]"])

    assert plan.faults == faults
