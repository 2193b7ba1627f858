"""Outcomes of real file systems whose power is cut are possible outcomes of simulated ones.

A file system is on a loop device in memory. The power cut is a copy of the backing file while it is mounted; the copy
is mounted, so that the journal is replayed, and read. This needs root on Linux and the file system's mkfs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simdist.storage import PROFILES, Content, Disk

MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
SIZES = {"ext4": "64M", "xfs": "320M", "btrfs": "128M"}
BLOCK = 4096
BATCHES, PROGRAMS, CALLS = 10, 20, 9
LOOKED_AT = 20_000  # number of outcomes

pytestmark = pytest.mark.real


def _obstacle(kind: str) -> str:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        return "needs root and loop devices, which Linux has"
    maker = MAKERS[kind][0]
    return "" if shutil.which(maker) else f"{maker} is not installed"


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True, timeout=60)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True, timeout=60)


class Program:
    """Random calls in a folder of their own, each applied to the real files and to the model."""

    def __init__(self, folder: Path, kind: str, draws: np.random.Generator, *, also: bool = False) -> None:
        self.folder = folder
        self._also = also  # the rarer calls
        self.disk = Disk(PROFILES[kind])
        self.said: list[str] = []
        self._draws = draws
        folder.mkdir()
        for name in "ab"[: int(draws.integers(3))]:
            data = self._bytes(2)
            (folder / name).write_bytes(data)
            self.disk.adopt(name, "file", Content(data))

    def _bytes(self, blocks: int) -> bytes:
        size = int(self._draws.integers(1, blocks * BLOCK))
        return bytes([int(self._draws.integers(1, 256))]) * size

    def step(self) -> None:
        """Do one call."""
        names = sorted(path.name for path in self.folder.iterdir())
        calls = ["create", "append", "overwrite", "rewrite", "cut", "rename", "link", "unlink"]
        if self._also:
            calls += ["create_dsync", "append_dsync", "allocate", "exchange", "unnamed"]
        call = str(self._draws.choice(calls))
        if self._draws.random() < 0.3:
            call = str(self._draws.choice(["fsync", "fdatasync", "fsync_dir", "fsync_to_read"][: 3 + self._also]))
        name = str(self._draws.choice(names)) if names else ""
        if not name and call != "fsync_dir":
            call = "create"
        getattr(self, f"_{call}")(name)

    def _note(self, *words: Any) -> None:
        self.said.append(" ".join(map(str, words)))

    def _other(self) -> str:
        return str(self._draws.choice(list("abcd")))

    def _put(self, name: str, offset: int, data: bytes, flags: int = 0) -> None:
        path = self.folder / name
        number = os.open(path, os.O_WRONLY | flags)
        os.pwrite(number, data, offset)
        os.close(number)

    def _create(self, _: str) -> None:
        name = next((name for name in "efghijklmnop" if not (self.folder / name).exists()), "p")
        data = self._bytes(2)
        self._note("create", name, len(data))
        self._put(name, 0, data, os.O_CREAT)
        inode = self.disk.create(name)
        self.disk.write(inode, 0, data)
        self.disk.close(inode)

    def _append(self, name: str) -> None:
        inode, data = self.disk.find(name), self._bytes(1)
        assert inode is not None
        self._note("append", name, len(data))
        self._put(name, inode.size, data)
        self.disk.write(inode, inode.size, data)
        self.disk.close(inode)

    def _overwrite(self, name: str) -> None:
        inode, data = self.disk.find(name), self._bytes(1)
        assert inode is not None
        offset = int(self._draws.integers(inode.size + 1))
        self._note("overwrite", name, offset, len(data))
        self._put(name, offset, data)
        self.disk.write(inode, offset, data)
        self.disk.close(inode)

    def _rewrite(self, name: str) -> None:
        inode, data = self.disk.find(name), self._bytes(2)
        assert inode is not None
        self._note("rewrite", name, len(data))
        self._put(name, 0, data, os.O_TRUNC)
        self.disk.resize(inode, 0)
        self.disk.write(inode, 0, data)
        self.disk.close(inode)

    def _cut(self, name: str) -> None:
        inode = self.disk.find(name)
        assert inode is not None
        size = int(self._draws.integers(inode.size + BLOCK))
        self._note("cut", name, size)
        os.truncate(self.folder / name, size)
        self.disk.resize(inode, size)

    def _rename(self, name: str) -> None:
        to = self._other()
        self._note("rename", name, to)
        (self.folder / name).rename(self.folder / to)
        self.disk.rename(name, to)

    def _link(self, name: str) -> None:
        to, inode = self._other(), self.disk.find(name)
        assert inode is not None
        if not (self.folder / to).exists():
            self._note("link", name, to)
            (self.folder / to).hardlink_to(self.folder / name)
            self.disk.link(inode, to)

    def _create_dsync(self, _: str) -> None:
        name = next((name for name in "efghijklmnop" if not (self.folder / name).exists()), "p")
        data, flag = self._bytes(2), (os.O_DSYNC, os.O_SYNC)[int(self._draws.integers(2))]
        self._note("create", name, len(data), "O_DSYNC" if flag == os.O_DSYNC else "O_SYNC")
        self._put(name, 0, data, os.O_CREAT | flag)
        inode = self.disk.create(name)
        self._synced(inode, 0, data, data_only=flag == os.O_DSYNC)

    def _append_dsync(self, name: str) -> None:
        inode, data = self.disk.find(name), self._bytes(1)
        assert inode is not None
        if inode.changes:
            return  # the real call waits only for these bytes, the model's for all
        self._note("append", name, len(data), "RWF_DSYNC")
        number = os.open(self.folder / name, os.O_WRONLY)
        os.pwritev(number, [data], inode.size, os.RWF_DSYNC)
        os.close(number)
        self._synced(inode, inode.size, data, data_only=True)

    def _synced(self, inode: Any, offset: int, data: bytes, *, data_only: bool) -> None:
        self.disk.write(inode, offset, data)
        self.disk.sync_file(inode, data_only=data_only)
        self.disk.close(inode)

    def _allocate(self, name: str) -> None:
        inode = self.disk.find(name)
        assert inode is not None
        size = inode.size + int(self._draws.integers(1, BLOCK))
        self._note("posix_fallocate", name, size)
        number = os.open(self.folder / name, os.O_WRONLY)
        os.posix_fallocate(number, 0, size)
        os.close(number)
        self.disk.allocate(inode, size)

    def _exchange(self, name: str) -> None:
        names = sorted(path.name for path in self.folder.iterdir() if not path.samefile(self.folder / name))
        if not names:
            return
        other = str(self._draws.choice(names))
        self._note("exchange", name, other)
        paths = bytes(self.folder / name), bytes(self.folder / other)
        assert ctypes.CDLL(None).renameat2(-100, paths[0], -100, paths[1], 2) == 0
        self.disk.exchange(name, other)

    def _unnamed(self, _: str) -> None:
        to, data = self._other(), self._bytes(2)
        if (self.folder / to).exists():
            return
        syncs = self._draws.random() < 0.5
        self._note("O_TMPFILE", len(data), "fsync" if syncs else "", "link", to)
        number = os.open(self.folder, os.O_TMPFILE | os.O_WRONLY)
        inode = self.disk.create_unnamed()
        os.write(number, data)
        self.disk.write(inode, 0, data)
        if syncs:
            os.fsync(number)
            self.disk.sync_file(inode)
        above = os.open("/proc/self/fd", os.O_RDONLY)
        os.link(f"/proc/self/fd/{number}", self.folder / to, src_dir_fd=above, follow_symlinks=True)
        os.close(above)
        self.disk.link(inode, to)
        os.close(number)
        self.disk.close(inode)
        self.disk.release(inode)

    def _fsync_to_read(self, name: str) -> None:
        inode = self.disk.find(name)
        assert inode is not None
        self._note("fsync", name, "by a descriptor to read")
        number = os.open(self.folder / name, os.O_RDONLY)
        os.fsync(number)
        os.close(number)
        self.disk.sync_file(inode)

    def _unlink(self, name: str) -> None:
        self._note("unlink", name)
        (self.folder / name).unlink()
        self.disk.remove(name)

    def _fsync(self, name: str) -> None:
        self._sync(name, data_only=False)

    def _fdatasync(self, name: str) -> None:
        self._sync(name, data_only=True)

    def _sync(self, name: str, *, data_only: bool) -> None:
        inode = self.disk.find(name)
        assert inode is not None
        self._note("fdatasync" if data_only else "fsync", name)
        number = os.open(self.folder / name, os.O_RDWR)
        (os.fdatasync if data_only else os.fsync)(number)
        os.close(number)
        self.disk.sync_file(inode, data_only=data_only)

    def _fsync_dir(self, _: str) -> None:
        root = self.disk.find("")
        assert root is not None
        self._note("fsync_dir")
        number = os.open(self.folder, os.O_RDONLY)
        os.fsync(number)
        os.close(number)
        self.disk.sync_folder(root)

    def allows(self, left: dict[str, bytes]) -> bool:
        """True if this is a possible outcome of the model."""
        outcomes = itertools.islice(self.disk.outcomes(), LOOKED_AT)
        return any(self.disk.contents(image) == left for image in outcomes)


@pytest.mark.parametrize("also", [False, True], ids=["common", "rare"])
@pytest.mark.parametrize("kind", MAKERS)
def test_every_real_outcome_is_one_that_the_profile_allows(kind: str, also: bool) -> None:
    reason = _obstacle(kind)
    if reason:
        pytest.skip(f"{kind}: {reason}")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    refused = []
    changed = 0
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        image, cut, at = Path(folder, "image"), Path(folder, "cut"), Path(folder, "at")
        for batch in range(BATCHES):
            image.unlink(missing_ok=True)
            subprocess.run(["truncate", "-s", SIZES[kind], str(image)], check=True, timeout=60)
            subprocess.run([*MAKERS[kind], str(image)], check=True, timeout=60, capture_output=True)
            draws = np.random.default_rng([7, batch])
            with _mounted(image, at):
                programs = [Program(at / f"p{index}", kind, draws, also=also) for index in range(PROGRAMS)]
                subprocess.run(["sync", "-f", str(at)], check=True, timeout=60)
                for _ in range(CALLS):
                    for program in programs:
                        program.step()
                subprocess.run(["cp", "--sparse=always", str(image), str(cut)], check=True, timeout=60)
                seen = [{path.name: path.read_bytes() for path in program.folder.iterdir()} for program in programs]
            with _mounted(cut, at):
                for program, before in zip(programs, seen, strict=True):
                    left = {path.name: path.read_bytes() for path in program.folder.iterdir()}
                    changed += left != before
                    if not program.allows(left):
                        sizes = {name: (len(data), sorted(set(data))[:4]) for name, data in left.items()}
                        refused.append((batch, program.folder.name, program.said, sizes))

    assert refused == []
    assert changed > BATCHES  # the power cuts have lost something
