"""All calls and descriptors that make a file durable: Linux's open(2), fsync(2), pwritev2(2).

Each program runs on a simulated disk whose host then loses power, once for each outcome, and on the independent
machine of `tests/storage/by_hand.py`: the possible outcomes are the same.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import simdist
from simdist.faults import HostCrash
from simdist.files import reaches_c_code
from simdist.result import RunResult
from simdist.storage import Mount
from tests.storage.by_hand import BLOCK, Call, Held, possible

SCALE = 4096 // BLOCK  # bytes of a real file for each byte of the machine's
MANY = 40  # outcomes that are checked
RULES = ("ext4", "xfs", "btrfs")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are calls of Linux")


def _sync(path: Path, flags: int = os.O_RDONLY) -> None:
    number = os.open(path, flags)
    os.fsync(number)
    os.close(number)


def _large(data: bytes) -> bytes:
    return b"".join(bytes([each]) * SCALE for each in data)


def _small(data: bytes) -> bytes:
    assert data == _large(data[::SCALE])
    return data[::SCALE]


def _run(program: Callable[[Path], None], folder: Path, rule: str, outcome: int) -> tuple[Held, RunResult]:
    folder.mkdir()

    def run(folder: Path) -> Held:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            program(folder)
            simdist.point("done")
        return frozenset((path.name, path.read_bytes()) for path in folder.iterdir())

    crash = HostCrash(rank=0, at_point="done", down_ns=1_000_000_000, outcome=outcome)
    disk = Mount(folder=folder, profile=rule)
    result = simdist.run(run, world_size=1, args=(folder,), disk=disk, faults=[crash], max_restarts=1)
    result.raise_for_failure()
    held: Held = result.values[0]
    return held, result


def _outcomes(program: Callable[[Path], None], folder: Path, rule: str) -> set[Held]:
    found: list[Held] = []
    for outcome in range(MANY):
        held, _ = _run(program, folder / f"{rule}{outcome}", rule, outcome)
        small = frozenset((name, _small(data)) for name, data in held)
        if small in found:
            break  # no more outcomes: the last one repeats
        found.append(small)
    return set(found)


def _write(folder: Path, name: str = "a", data: bytes = b"xyz") -> None:
    (folder / name).write_bytes(_large(data))


def _descriptor_to_read(folder: Path) -> None:
    _write(folder)
    _sync(folder / "a")


def _file_to_read(folder: Path) -> None:
    _write(folder)
    with (folder / "a").open("rb") as file:
        os.fsync(file.fileno())


def _copy_of_a_descriptor(folder: Path) -> None:
    number = os.open(folder / "a", os.O_CREAT | os.O_WRONLY)
    os.write(number, _large(b"xyz"))
    os.dup2(number, 300)
    os.close(number)
    os.fdatasync(300)
    os.close(300)


def _opened_sync(folder: Path) -> None:
    number = os.open(folder / "a", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
    os.write(number, _large(b"xyz"))
    os.close(number)


def _opened_dsync(folder: Path) -> None:
    opener = lambda name, flags: os.open(name, flags | os.O_DSYNC)  # noqa: E731
    with open(folder / "a", "wb", opener=opener) as file:
        file.write(_large(b"xyz"))


def _dsync_and_renamed(folder: Path) -> None:
    _opened_dsync(folder)
    (folder / "a").rename(folder / "b")


def _written_with_dsync(folder: Path) -> None:
    number = os.open(folder / "a", os.O_CREAT | os.O_WRONLY)
    os.pwritev(number, [_large(b"xy"), _large(b"z")], 0, os.RWF_DSYNC)
    os.close(number)


def _appended_by_pwritev(folder: Path) -> None:
    _descriptor_to_read(folder)
    number = os.open(folder / "a", os.O_WRONLY | os.O_APPEND)
    os.pwritev(number, [_large(b"12")], 0)
    os.close(number)


def _allocated(folder: Path) -> None:
    number = os.open(folder / "a", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(number, 0, 3 * SCALE)
    os.fsync(number)
    os.posix_fallocate(number, 0, SCALE)  # is there
    os.pwrite(number, _large(b"xyz"), 0)
    os.close(number)


def _copied(folder: Path) -> None:
    _descriptor_to_read(folder)
    with (folder / "a").open("rb") as file, (folder / "b").open("wb") as copy:
        assert os.copy_file_range(file.fileno(), copy.fileno(), 3 * SCALE) == 3 * SCALE


def _copied_by_path(folder: Path) -> None:
    _descriptor_to_read(folder)
    (folder / "a").copy(folder / "b")  # type: ignore[attr-defined,unused-ignore]  # of Python 3.14


def _sent(folder: Path) -> None:
    _descriptor_to_read(folder)
    with (folder / "a").open("rb") as file, (folder / "b").open("wb") as copy:
        assert os.sendfile(copy.fileno(), file.fileno(), 0, 3 * SCALE) == 3 * SCALE


def _spliced(folder: Path) -> None:
    _descriptor_to_read(folder)
    source, sink = os.pipe()
    with (folder / "b").open("wb") as copy:
        os.write(sink, _large(b"xyz"))
        assert os.splice(source, copy.fileno(), 3 * SCALE) == 3 * SCALE
    os.close(source)
    os.close(sink)


def _linked(folder: Path) -> None:
    _write(folder)
    (folder / "b").hardlink_to(folder / "a")
    _sync(folder / "b")


def _all(folder: Path) -> None:
    _write(folder)
    _write(folder, "b")
    os.sync()


def _unnamed(folder: Path, *, sync: bool = True) -> None:
    number = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(number, _large(b"xyz"))
    if sync:
        os.fsync(number)
    above = os.open("/proc/self/fd", os.O_RDONLY)
    os.link(f"/proc/self/fd/{number}", folder / "a", src_dir_fd=above, follow_symlinks=True)
    os.close(above)
    if sync:
        _sync(folder)
    os.close(number)


def _unnamed_without_sync(folder: Path) -> None:
    _unnamed(folder, sync=False)


def _never_named(folder: Path) -> None:
    number = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    os.write(number, _large(b"xyz"))
    os.fsync(number)


def _renameat2(folder: Path, name: str, to: str, flags: int) -> None:
    library = ctypes.CDLL(None)
    if library.renameat2(-100, bytes(folder / name), -100, bytes(folder / to), flags):
        pytest.skip("this file system has no renameat2 with flags")


def _exchanged(folder: Path) -> None:
    for name in "ab":
        _write(folder, name, name.encode())
        _sync(folder / name)
    _sync(folder)
    _renameat2(folder, "a", "b", 2)  # RENAME_EXCHANGE
    _sync(folder)


def _moved_where_nothing_is(folder: Path) -> None:
    _write(folder)
    _sync(folder / "a")
    _renameat2(folder, "a", "b", 1)  # RENAME_NOREPLACE
    _sync(folder)


def _by_ctypes(folder: Path) -> None:
    _write(folder)
    number = os.open(folder / "a", os.O_RDONLY)
    assert ctypes.CDLL(None).fdatasync(number) == 0
    os.close(number)


def _whole_by_ctypes(folder: Path) -> None:
    _write(folder)
    _write(folder, "b")
    number = os.open(folder, os.O_RDONLY)
    assert ctypes.CDLL(None, use_errno=True).syncfs(number) == 0
    assert (ctypes.CDLL(None, use_errno=True).fsync(-1), ctypes.get_errno()) == (-1, errno.EBADF)
    os.close(number)


def _flushed_mapping(folder: Path) -> None:
    with (folder / "a").open("w+b") as file:
        file.write(_large(b"xyz"))
        file.flush()
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[SCALE] = mapped[0]
            mapped[SCALE : 2 * SCALE] = _large(b"Y")
            mapped.flush()


def _flushed_mapping_of_another(folder: Path) -> None:
    _write(folder, "b")
    _flushed_mapping(folder)


_A: list[Call] = [("create", "a"), ("write", "a", 0, b"xyz")]
_SYNCED: list[Call] = [*_A, ("close", "a"), ("fsync", "a")]
_B: list[Call] = [("create", "b"), ("write", "b", 0, b"xyz"), ("close", "b")]
PROGRAMS: dict[Callable[[Path], None], list[Call]] = {
    _descriptor_to_read: _SYNCED,
    _file_to_read: _SYNCED,
    _copy_of_a_descriptor: [*_A, ("close", "a"), ("fdatasync", "a")],
    _opened_sync: [*_A, ("fsync", "a"), ("close", "a")],
    _opened_dsync: [*_A, ("fdatasync", "a"), ("close", "a")],
    _dsync_and_renamed: [*_A, ("fdatasync", "a"), ("close", "a"), ("rename", "a", "b")],
    _written_with_dsync: [*_A, ("fdatasync", "a"), ("close", "a")],
    _appended_by_pwritev: [*_SYNCED, ("write", "a", 3, b"12"), ("close", "a")],
    _allocated: [("create", "a"), ("allocate", "a", 3), ("fsync", "a"), ("write", "a", 0, b"xyz"), ("close", "a")],
    _copied: [*_SYNCED, *_B],
    **({_copied_by_path: [*_SYNCED, *_B]} if hasattr(Path, "copy") else {}),
    _sent: [*_SYNCED, *_B],
    _spliced: [*_SYNCED, *_B],
    _linked: [*_A, ("close", "a"), ("link", "a", "b"), ("fsync", "b")],
    _all: [*_SYNCED, *_B, ("fsync", "b"), ("fsync dir",)],
    _unnamed: [("unnamed", "#"), ("write", "#", 0, b"xyz"), ("fsync", "#"), ("link", "#", "a"), ("fsync dir",)],
    _unnamed_without_sync: [("unnamed", "#"), ("write", "#", 0, b"xyz"), ("link", "#", "a")],
    _never_named: [("unnamed", "#"), ("write", "#", 0, b"xyz"), ("fsync", "#")],
    _exchanged: [
        *(("create", "a"), ("write", "a", 0, b"a"), ("fsync", "a")),
        *(("create", "b"), ("write", "b", 0, b"b"), ("fsync", "b")),
        *(("fsync dir",), ("exchange", "a", "b"), ("fsync dir",)),
    ],
    _by_ctypes: [*_A, ("close", "a"), ("fdatasync", "a")],
    _whole_by_ctypes: [*_SYNCED, *_B, ("fsync", "b"), ("fsync dir",)],
    _moved_where_nothing_is: [*_SYNCED, ("rename", "a", "b"), ("fsync dir",)],
    _flushed_mapping: [*_A, ("write", "a", 1, b"Y"), ("fdatasync", "a"), ("close", "a")],
    _flushed_mapping_of_another: [*_B, *_A, ("write", "a", 1, b"Y"), ("fdatasync", "a"), ("close", "a")],
}


_CTYPES = (_by_ctypes, _whole_by_ctypes)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_what_may_be_left_is_what_the_machine_leaves(
    tmp_path: Path, rule: str, program: Callable[[Path], None]
) -> None:
    if program in _CTYPES and not reaches_c_code():
        pytest.skip("calls of C code can't be seen on this machine")
    found, allowed = _outcomes(program, tmp_path, rule), possible(rule, PROGRAMS[program])

    assert found <= allowed
    assert found == allowed or len(allowed) > MANY // 2


def test_a_checkpoint_synced_through_a_descriptor_to_read_survives_a_sweep(tmp_path: Path) -> None:
    def train(folder: str) -> Any:
        path = Path(folder, "checkpoint.pt")
        saved = torch.load(path)["step"] if path.exists() else -1
        for step in range(saved + 1, 3):
            simdist.step(step)
            torch.save({"step": step}, path.with_suffix(".tmp"))
            with path.with_suffix(".tmp").open("rb") as file:
                os.fsync(file.fileno())
            path.with_suffix(".tmp").replace(path)
            _sync(path.parent)
        return torch.load(path)

    report = simdist.sweep(train, world_size=1, args=("{tmp}",), max_steps_lost=1)

    report.raise_for_failure()
    assert len(report.cases) > 5
    assert report.unseen == ()


def test_files_of_a_disk_share_no_blocks(tmp_path: Path) -> None:
    """As on ext4: the answer depends on the disk, not on the request."""

    def clone() -> int | None:
        with (tmp_path / "b").open("wb") as file, pytest.raises(OSError) as refused:  # noqa: PT011  # the number is checked
            fcntl.ioctl(file, 0x40049409, -1)  # FICLONE
        return refused.value.errno

    assert simdist.run(clone, world_size=1, disk=Mount(folder=tmp_path)).values == [errno.EOPNOTSUPP]
