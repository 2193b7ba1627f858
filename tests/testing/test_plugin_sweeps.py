"""`@pytest.mark.simdist_sweep`: a test whose body must recover from every crash."""

from __future__ import annotations

from tests.testing.runs import Run

BODY = """
import os
from pathlib import Path

import pytest
import torch.distributed as dist


def save(folder, sync):
    path = Path(folder) / "value"
    if not path.exists():
        with path.with_suffix(".tmp").open("w") as file:
            file.write("5")
            if sync:
                file.flush()
                os.fsync(file.fileno())
        path.with_suffix(".tmp").replace(path)
    return int(path.read_text())


@pytest.mark.simdist_sweep(1)
def test_it_syncs(disk):
    assert save(disk, True) == 5


@pytest.mark.simdist_sweep(1, outcomes=2)
def test_it_does_not(disk):
    dist.init_process_group("gloo")
    dist.barrier()  # which torch logs
    assert save(disk, False) == 5


@pytest.mark.simdist_sweep(1, profile="zfs")
def test_a_disk_that_nobody_knows(disk):
    pass


@pytest.mark.simdist_sweep(world_size=1)
def test_it_fails_by_itself(disk):
    raise ValueError("no")


def test_nobody_sweeps(disk):
    pass


@pytest.mark.simdist(world_size=1)
@pytest.mark.simdist_sweep(world_size=1)
def test_both(disk):
    pass


@pytest.mark.simdist(world_size=1)
class TestDefaults:
    @pytest.mark.simdist_sweep(world_size=1)
    def test_a_sweep_among_others(self, disk):
        pass
"""


def test_the_body_has_to_come_back_from_every_crash(run: Run) -> None:
    done = run(files={"test_it.py": BODY})

    assert done.outcomes == {
        "test_it_syncs": "passed",
        "test_it_does_not": "failed",
        "test_a_disk_that_nobody_knows": "failed",
        "test_it_fails_by_itself": "failed",
        "test_nobody_sweeps": "error",
        "test_both": "failed",
        "TestDefaults::test_a_sweep_among_others": "passed",
    }, done.text
    assert "not survived" in done.text
    assert "Captured log" not in done.text
    assert "all hosts lost power after rename of value.tmp to value (test_it.py:" in done.text
    assert "value is empty, of 1 bytes; rank 0 raised ValueError: invalid literal for int()" in done.text
    assert done.text.count("simdist.sweep: profile: 'zfs' is none of ext4, xfs, btrfs, posix, nfs") == 1
    assert "During handling of the above exception" not in done.text
    assert (
        "test_it.py::test_both: @pytest.mark.simdist and @pytest.mark.simdist_sweep each run the body in their own "
        "way; give one of them" in done.text
    )
    assert "without any crash: outcomes: rank 0 raised ValueError: no" in done.text
    assert "the fixture disk is for tests with @pytest.mark.simdist_sweep" in done.text
