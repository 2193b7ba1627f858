"""Faults of a simulated disk: errors, short writes, slowness, no space."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.errors import FaultError
from simdist.faults import BitRot, Crash, DiskFull, Fault, HostCrash, IoError, ShortWrite, SlowDisk
from simdist.result import RunResult

MS = 1_000_000


def _run(program: Any, disk: Path, faults: Sequence[Fault], **settings: Any) -> RunResult:
    return simdist.run(program, world_size=1, args=(disk,), disk=disk, faults=faults, **settings)


def _save(folder: Path) -> None:
    with (folder / "a").open("wb", buffering=0) as file:
        file.write(b"abcdef")
        os.fsync(file.fileno())


@pytest.mark.parametrize(("op", "left"), [("create", None), ("write", b""), ("fsync", b"abcdef")])
def test_an_error_comes_in_place_of_the_effect(tmp_path: Path, op: str, left: bytes | None) -> None:
    result = _run(_save, tmp_path, [IoError(rank=0, op=op, nth=1)])

    error = result.ranks[0].exception
    assert isinstance(error, OSError)
    assert (error.errno, str(error)) == (errno.EIO, "[Errno 5] Input/output error")
    assert (tmp_path / "a").exists() == (left is not None)
    assert left is None or (tmp_path / "a").read_bytes() == left


def _retries(folder: Path, *, again: bool) -> Any:
    """Repeat a failed fsync, as PostgreSQL did until 2018."""
    path = folder / "a"
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return path.read_bytes()
    with path.open("wb", buffering=0) as file:
        file.write(b"abcdef")
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())
        if again:
            file.seek(0)
            file.write(b"abcdef")
        os.fsync(file.fileno())
    simdist.step(1)
    return None


@pytest.mark.parametrize(("again", "left"), [(False, b""), (True, b"abcdef")])
def test_a_failed_fsync_is_reported_once_and_its_bytes_are_not_there(tmp_path: Path, again: bool, left: bytes) -> None:
    faults = [IoError(rank=0, nth=1), HostCrash(rank=0, at_step=1, down_ns=MS, outcome=0)]

    result = _run(_retries, tmp_path, faults, kwargs={"again": again}, max_restarts=1)

    assert result.ranks[0].value == left


def test_a_write_may_be_short(tmp_path: Path) -> None:
    def program(folder: Path) -> list[int]:
        number = os.open(folder / "a", os.O_CREAT | os.O_WRONLY)
        counts = [os.write(number, b"abcdef"), os.write(number, b"abcdef")]
        os.close(number)
        return counts

    result = _run(program, tmp_path, [ShortWrite(rank=0, nth=1, bytes_written=2)])

    assert result.ranks[0].value == [2, 6]
    assert (tmp_path / "a").read_bytes() == b"ababcdef"


def test_pythons_files_write_the_rest(tmp_path: Path) -> None:
    result = _run(lambda folder: (folder / "a").write_bytes(b"abcdef"), tmp_path, [ShortWrite(rank=0, nth=1)])

    result.raise_for_failure()
    assert (tmp_path / "a").read_bytes() == b"abcdef"
    assert [e.data["size"] for e in result.events if e.kind == "storage"] == [0, 1, 5]


def test_a_slow_disk_takes_its_time(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, [SlowDisk(delay_ns=5 * MS)])

    assert result.virtual_time_ns == 3 * 5 * MS


def test_a_stalled_disk_goes_on_when_the_fault_is_over(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, [SlowDisk(delay_ns=0, stalls=True, until_ns=70 * MS)])

    assert result.virtual_time_ns == 70 * MS


def test_slowness_and_a_crash_add_up(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, [SlowDisk(delay_ns=5 * MS), Crash(rank=0, op="write", nth=1)])

    assert result.ranks[0].status == "killed"
    assert result.ranks[0].ended_ns == 10 * MS


def test_a_full_disk_takes_what_fits(tmp_path: Path) -> None:
    def program(folder: Path) -> int:
        (folder / "a").write_bytes(bytes(60))
        with pytest.raises(OSError, match="No space left on device"):
            (folder / "b").write_bytes(bytes(60))
        with pytest.raises(OSError, match="No space left on device"):
            (folder / "d").touch()
        return 1

    result = _run(program, tmp_path, [DiskFull(free_bytes=100)])

    result.raise_for_failure()
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {
        "a": 60,
        "b": 40,
    }  # a short write, and then none


def test_torch_on_a_full_disk_leaves_part_of_a_file(tmp_path: Path) -> None:
    result = _run(
        lambda folder: torch.save(torch.zeros(100_000), folder / "a.pt"), tmp_path, [DiskFull(free_bytes=5000)]
    )

    assert result.ranks[0].exception is not None
    assert 0 < (tmp_path / "a.pt").stat().st_size <= 5000


@pytest.mark.parametrize(
    "fault",
    [DiskFull(), SlowDisk(delay_ns=1), IoError(rank=0, nth=1), Crash(rank=0, op="rename"), ShortWrite(rank=0, nth=1)],
)
def test_without_a_disk_they_are_refused(fault: Fault) -> None:
    with pytest.raises(FaultError, match="it strikes what a rank does to a simulated disk, and there is none"):
        simdist.run(print, world_size=1, faults=[fault])


def test_what_is_wrong_with_them_is_reported(tmp_path: Path) -> None:
    faults = [IoError(rank=0, op="all_reduce", error="EBAD"), ShortWrite(rank=0, op="fsync"), DiskFull(free_bytes=-1)]
    with pytest.raises(FaultError) as caught:
        _run(print, tmp_path, faults)

    text = str(caught.value)
    for place in ("faults[0].op", "faults[0].error", "faults[1].op", "faults[2].free_bytes"):
        assert f"{place}: " in text


def test_a_quota_is_used_up(tmp_path: Path) -> None:
    def program(folder: Path) -> int | None:
        with pytest.raises(OSError, match="Disk quota exceeded") as caught:
            (folder / "a").write_bytes(bytes(11))
        return caught.value.errno

    result = _run(program, tmp_path, [DiskFull(free_bytes=10, error="EDQUOT")])

    assert result.values == [errno.EDQUOT]
    assert [event.data["text"] for event in result.events if event.kind == "fault"] == [
        "the quota has room for 10 more bytes"
    ]


@pytest.mark.parametrize("op", ["create", "write", "fsync"])
def test_python_calls_again_if_it_was_interrupted(tmp_path: Path, op: str) -> None:
    result = _run(_save, tmp_path, [IoError(rank=0, op=op, nth=1, error="EINTR")])

    result.raise_for_failure()
    assert (tmp_path / "a").read_bytes() == b"abcdef"


def test_a_handle_is_stale(tmp_path: Path) -> None:
    result = _run(_save, tmp_path, [IoError(rank=0, op="write", nth=1, error="ESTALE")])

    assert str(result.ranks[0].exception) == "[Errno 116] Stale file handle"


@pytest.mark.parametrize("count", [0, 1, 5, 6, 70])
def test_a_process_dies_in_the_middle_of_a_write(tmp_path: Path, count: int) -> None:
    crash = Crash(rank=0, op="write", nth=1, when="during", bytes_written=count)

    assert _run(_save, tmp_path, [crash]).ranks[0].status == "killed"
    assert (tmp_path / "a").read_bytes() == b"abcdef"[:count]


def test_a_host_loses_power_in_the_middle_of_a_write(tmp_path: Path) -> None:
    def program(folder: Path) -> bytes:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
            return (folder / "a").read_bytes()
        descriptor = os.open(folder / "a", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"x" * 8192)
        os.fsync(descriptor)
        os.pwrite(descriptor, b"y" * 8192, 0)
        return b""

    found = set()
    for outcome in range(4):
        crash = HostCrash(
            rank=0, op="write", nth=2, when="during", bytes_written=5000, down_ns=MS, outcome=outcome, all_hosts=True
        )
        for path in tmp_path.iterdir():
            path.unlink()
        found.add(_run(program, tmp_path, [crash], max_restarts=1).values[0])

    torn = b"y" * 4096 + b"x" * 4096  # the first block is written, the second is not
    whole = b"y" * 5000 + b"x" * 3192
    assert {b"x" * 8192, torn, whole} <= found


def test_a_bit_rots_and_nobody_hears_of_it(tmp_path: Path) -> None:
    def program(folder: Path) -> bytes:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            (folder / "a.pt").write_bytes(b"abc")
            (folder / "b.pt").write_bytes(b"abc")
            os.sync()
            simdist.point("saved")
        return (folder / "a.pt").read_bytes() + (folder / "b.pt").read_bytes()

    rot = BitRot(rank=0, at_point="saved", path="*.pt", bit=5)
    crash = HostCrash(rank=0, at_point="saved", down_ns=MS, all_hosts=True)

    assert _run(program, tmp_path, [rot]).values == [b"abcaBc"]
    assert _run(program, tmp_path, [rot, crash], max_restarts=1).values == [b"abcaBc"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (BitRot(rank=0, at_step=0, path="*.pt"), FileNotFoundError),
        (BitRot(rank=0, at_step=0, path="a", byte=3), ValueError),
    ],
)
def test_what_is_not_there_cannot_rot(tmp_path: Path, fault: Fault, error: type[Exception]) -> None:
    def program(folder: Path) -> None:
        (folder / "a").write_bytes(b"abc")
        simdist.step(0)

    assert isinstance(_run(program, tmp_path, [fault]).ranks[0].exception, error)


def test_more_that_is_wrong_with_them_is_reported(tmp_path: Path) -> None:
    faults = [
        Crash(rank=0, op="fsync", bytes_written=3),
        HostCrash(rank=0, op="write", bytes_written=3),
        BitRot(rank=0, at_ns=3, path="a"),
        DiskFull(error="EIO"),
    ]
    with pytest.raises(FaultError) as caught:
        _run(print, tmp_path, faults)

    text = str(caught.value)
    for place in ("faults[0].bytes_written", "faults[1].bytes_written", "faults[2].at_ns", "faults[3].error"):
        assert f"{place}: " in text
