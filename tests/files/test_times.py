"""Files that ranks write to a simulated disk have virtual times, before a crash of the host and after it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.cluster import make
from simdist.faults import Crash, HostCrash
from simdist.storage import Mount

BEGIN_S = 1_767_225_600  # the first second of 2026, since 1970
SECOND = 1_000_000_000


def _at(path: Path) -> tuple[float, float]:
    """Return when a file was written, and when it was last changed, since the world began."""
    found = os.lstat(path)
    return found.st_mtime - BEGIN_S, found.st_ctime - BEGIN_S


def _life() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def _by_descriptor(path: Path) -> None:
    number = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.pwrite(number, b"data", 2)
    os.close(number)


def _renamed(path: Path) -> None:
    path.with_suffix(".tmp").write_text("data")
    os.replace(path.with_suffix(".tmp"), path)


WRITES: dict[str, Callable[[Path], Any]] = {
    "write_text": lambda path: path.write_text("data"),
    "by descriptor": _by_descriptor,
    "replace": _renamed,
    "mkdir": lambda path: path.mkdir(),
    "symlink": lambda path: path.symlink_to(path.parent),
    "torch.save": lambda path: torch.save(torch.ones(3), path),
}


@pytest.mark.parametrize("profile", ["ext4", "nfs"])
@pytest.mark.parametrize("name", WRITES)
def test_what_a_rank_writes_to_a_disk_has_its_time(name: str, profile: str, tmp_path: Path) -> None:
    def body() -> list[tuple[float, float]]:
        time.sleep(1.5)
        WRITES[name](tmp_path / "written")
        time.sleep(1)
        return [_at(tmp_path / "written"), _at(tmp_path)]

    result = simdist.run(body, world_size=1, disk=Mount(folder=tmp_path, profile=profile))

    assert result.values == [[(1.5, 1.5), (1.5, 1.5)]]


def test_an_effect_that_takes_time_ends_with_it(tmp_path: Path) -> None:
    def body() -> tuple[float, float]:
        number = os.open(tmp_path / "written", os.O_CREAT | os.O_WRONLY)
        os.write(number, b"data")
        return _at(tmp_path / "written")

    result = simdist.run(body, world_size=1, disk=Mount(folder=tmp_path, latency_ns=SECOND // 4))

    assert result.values == [(0.5, 0.5)]


def test_times_set_on_a_disk_and_those_of_the_host_stay(tmp_path: Path) -> None:
    (tmp_path / "of_host").write_text("data")
    os.utime(tmp_path / "of_host", (5, 6))

    def body() -> list[float]:
        path = tmp_path / "written"
        path.write_text("data")
        time.sleep(1)
        os.utime(path, (7, 8))
        found = path.stat()
        return [found.st_atime, found.st_mtime, found.st_ctime - BEGIN_S, (tmp_path / "of_host").stat().st_mtime]

    assert simdist.run(body, world_size=1, disk=tmp_path).values == [[7.0, 8.0, 1.0, 6.0]]


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize("op", ["write", "rename", "create"])
def test_a_killed_process_leaves_the_time_of_its_last_effect(op: str, when: str, tmp_path: Path) -> None:
    def body() -> tuple[float, float] | None:
        if _life():
            return _at(tmp_path)
        (tmp_path / "a").mkdir()
        time.sleep(1.5)
        (tmp_path / "b").write_text("data")
        (tmp_path / "b").rename(tmp_path / "c")
        return None

    crash = Crash(rank=0, op=op, when=when)  # type: ignore[arg-type]  # a parameter
    result = simdist.run(body, world_size=1, disk=tmp_path, faults=[crash], max_restarts=1)

    at = 0.0 if op == "create" and when == "before" else 1.5
    assert result.values == [(at, at)]


def _write_old_and_new(path: Path) -> None:
    """Write a file, sync it, and a second later write more, which is not synced."""
    number = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(number, b"old")
    os.fsync(number)
    time.sleep(1)
    os.write(number, b" and new")


@pytest.mark.parametrize("profile", ["ext4", "nfs"])
def test_a_crash_brings_back_the_time_from_before(profile: str, tmp_path: Path) -> None:
    def body() -> tuple[str, tuple[float, float]] | None:
        path = tmp_path / "file"
        if _life():
            return path.read_text(), _at(path)
        time.sleep(1)
        _write_old_and_new(path)
        time.sleep(1)
        simdist.step(1)
        return None

    crash = HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=0)
    disk = Mount(folder=tmp_path, profile=profile)

    result = simdist.run(body, world_size=1, disk=disk, faults=[crash], max_restarts=1)

    assert result.ranks[0].value == ("old", (1.0, 1.0))


def test_a_file_that_was_replaced_comes_back_with_its_time(tmp_path: Path) -> None:
    (tmp_path / "of_host").write_text("host")
    os.utime(tmp_path / "of_host", (5, 6))

    def body() -> list[Any] | None:
        files = [tmp_path / "file", tmp_path / "of_host"]
        if _life():
            return [(path.read_text(), path.stat().st_mtime) for path in files]
        time.sleep(1)
        for path in files[:1]:
            path.write_text("old")
        os.sync()
        time.sleep(1)
        for path in files:
            path.with_suffix(".tmp").write_text("new")
            path.with_suffix(".tmp").rename(path)
        simdist.step(1)
        return None

    crash = HostCrash(rank=0, at_step=1, down_ns=SECOND, outcome=1)

    result = simdist.run(body, world_size=1, disk=tmp_path, faults=[crash], max_restarts=1)

    assert result.ranks[0].value == [("old", BEGIN_S + 1.0), ("host", 6.0)]


def test_what_survives_a_crash_keeps_its_time(tmp_path: Path) -> None:
    def body() -> list[tuple[float, float]] | None:
        if _life():
            return [_at(path) for path in sorted(tmp_path.iterdir())]
        for number in range(3):
            time.sleep(1)
            torch.save(torch.ones(3), tmp_path / f"{number}.pt")
        os.sync()
        simdist.step(1)
        return None

    crash = HostCrash(rank=0, at_step=1, down_ns=SECOND)

    result = simdist.run(body, world_size=1, disk=tmp_path, faults=[crash], max_restarts=1)

    assert result.ranks[0].value == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_when_a_client_of_a_file_server_dies_its_file_has_the_older_time(tmp_path: Path) -> None:
    def body() -> tuple[str, tuple[float, float]] | None:
        path = tmp_path / "file"
        if _life():
            return path.read_text(), _at(path)
        if os.environ["RANK"] == "1":
            time.sleep(1)
            _write_old_and_new(path)
            simdist.step(1)
        time.sleep(9)
        return None

    crash = HostCrash(rank=1, at_step=1, down_ns=SECOND, outcome=0)
    settings: dict[str, Any] = {"disk": Mount(folder=tmp_path, profile="nfs"), "cluster": make(2, hosts=2)}

    result = simdist.run(body, world_size=2, faults=[crash], max_restarts=1, **settings)

    assert result.values == [("old", (1.0, 1.0))] * 2
