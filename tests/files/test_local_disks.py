"""Local disks of hosts, in addition to the shared one: what they keep, and machines that are replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import simdist
from simdist.cluster import make
from simdist.errors import FaultError
from simdist.faults import Fault, HostCrash
from simdist.result import RunResult
from simdist.storage import Mount

SECOND = 1_000_000_000


def keep(shared: Path) -> dict[str, Any]:
    """Write to both disks in the first life; returns what is there in the next."""
    own, rank = Path(os.environ["SIMDIST_LOCAL_DISK"]), os.environ["RANK"]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        for folder in (own, shared):
            path = folder / f"of{rank}"
            with path.open("w") as file:
                file.write(rank)
                if rank == "0":
                    file.flush()
                    os.fsync(file.fileno())
    simdist.step(0)
    simdist.point("written")
    return {"own": sorted(os.listdir(own)), "shared": sorted(os.listdir(shared)), "name": own.name}


def _run(tmp_path: Path, *faults: Fault, ranks: int = 2) -> RunResult:
    for name in ("shared", "local"):
        (tmp_path / name).mkdir()
    return simdist.run(
        keep,
        world_size=ranks,
        args=(tmp_path / "shared",),
        cluster=make(ranks, hosts=ranks),
        disk=Mount(folder=tmp_path / "shared", local=tmp_path / "local"),
        faults=faults,
        max_restarts=1 if faults else 0,
    )


def test_a_host_has_a_disk_that_no_other_sees(tmp_path: Path) -> None:
    result = _run(tmp_path)

    assert [value["own"] for value in result.values] == [["of0"], ["of1"]]
    assert [value["name"] for value in result.values] == ["host0", "host1"]
    assert (tmp_path / "local" / "host1" / "of1").read_text() == "1"
    paths = {str(event.data["path"]) for event in result.events if event.kind == "storage"}
    assert paths == {"of0", "of1", "host0:of0", "host1:of1"}


def test_a_host_that_loses_power_loses_what_was_not_synced_on_its_own_disk(tmp_path: Path) -> None:
    result = _run(tmp_path, HostCrash(rank=1, at_point="written", down_ns=SECOND, outcome=1))

    assert [value["own"] for value in result.values] == [["of0"], []]
    assert result.values[0]["shared"] == ["of0", "of1"]  # its server is up, and the file was closed
    assert [str(e.data["path"]) for e in result.events if e.kind == "disk"] == ["host1:of1"]


def test_all_hosts_lose_power_each_with_its_own_disk(tmp_path: Path) -> None:
    result = _run(tmp_path, HostCrash(rank=1, at_point="written", all_hosts=True, down_ns=SECOND, outcome=1))

    assert [value["own"] for value in result.values] == [["of0"], []]


def test_hosts_come_back_with_the_disks_of_others_at_their_own_paths(tmp_path: Path) -> None:
    crash = HostCrash(rank=2, at_point="written", all_hosts=True, down_ns=SECOND, disks="swapped")

    result = _run(tmp_path, crash, ranks=3)

    assert [value["own"] for value in result.values] == [["of2"], ["of0"], ["of1"]]
    assert [value["name"] for value in result.values] == ["host0", "host1", "host2"]
    assert result.values[0]["shared"] == ["of0", "of1", "of2"]
    assert (tmp_path / "local" / "host0" / "of2").read_text() == "2"
    assert "all hosts go down for 1000 ms, and their disks are swapped" in str(
        [event.data.get("text") for event in result.events if event.kind == "fault"]
    )


def test_a_machine_is_replaced_by_one_with_an_empty_disk(tmp_path: Path) -> None:
    result = _run(tmp_path, HostCrash(rank=0, at_point="written", down_ns=SECOND, disks="empty"))

    assert [value["own"] for value in result.values] == [[], ["of1"]]
    assert result.values[0]["shared"] == ["of0", "of1"]
    assert [(e.data["path"], e.data["text"]) for e in result.events if e.kind == "disk"] == [("host0:of0", "is gone")]


def test_disks_that_are_not_there_or_not_free_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="a host that stays up keeps its disk; with all_hosts they can be swapped"):
        _run(tmp_path, HostCrash(rank=0, at_step=0, disks="swapped"))
    fault = HostCrash(rank=0, at_step=0, disks="empty")
    with pytest.raises(FaultError, match="no host has a disk of its own that could be empty"):
        simdist.run(keep, world_size=2, args=("",), faults=[fault], disk=tmp_path)


def test_equal_runs_are_equal(tmp_path: Path) -> None:
    def crashed(name: str) -> str:
        (tmp_path / name).mkdir()
        return _run(tmp_path / name, HostCrash(rank=0, at_point="written", all_hosts=True, down_ns=SECOND)).digest

    assert crashed("a") == crashed("b")
