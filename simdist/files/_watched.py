"""A real folder and the model of what is durable of it, kept in step.

What ranks do is told by `MountedDisk`. What code has changed that can't be seen is found by looking at the file before
the model has to know it (`look`), and is recorded as "unseen".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from simdist.files._spill import Spill
from simdist.kernel import Simulation
from simdist.process import original
from simdist.records import stored
from simdist.storage import PROFILES, Content, Disk, Inode

__all__ = ["WatchedFolder"]


class WatchedFolder:
    """A folder, and the disk that it stands for. What is in it at the beginning is durable."""

    def __init__(self, folder: str, profile: str, simulation: Simulation, owner: str = "") -> None:
        self.folder = os.path.realpath(folder)
        self.spill = Spill(lambda: self.disk.held_bytes)
        self.disk = Disk(PROFILES[profile], read=self._read, hold=self.spill.hold)
        self.owner = owner  # the host that it belongs to; "" if all see it
        self.changes = 0  # how often it has changed
        self.unseen: list[str] = []  # paths that changed in ways that can't be seen
        self._simulation = simulation
        self._known: dict[int, tuple[int, int, int]] = {}  # what real files were when last looked at, by inode
        for path, real, kind in self._walk():
            target = os.readlink(real) if kind == "link" else ""
            content = Content(size=os.lstat(real).st_size, load=lambda real=real: self._held(real))  # type: ignore[misc]
            inode = self.disk.adopt(path, kind, content if kind == "file" else Content(), target)
            self.remember(inode, real)

    def shown(self, place: str) -> str:
        """A place as records tell of it."""
        return f"{self.owner}:{place}" if self.owner else place

    def real(self, place: str) -> str:
        """The real path."""
        return os.path.join(self.folder, place)

    def find(self, place: str) -> Inode | None:
        """What stands at a place, changes included that were not seen; None if there is nothing."""
        inode = self.disk.find(place)
        real = self.real(place)
        try:
            found = original(os.lstat)(real)
        except OSError:
            if inode is not None and place:
                self._unseen(place)
                self._drop(place)
            return None
        known = None if inode is None else self._known.get(inode.number)
        if inode is not None and inode.kind == "file" and known is not None and known[2] != found.st_ino:
            self._drop(place)
            inode = None
        if inode is None:
            self._unseen(place)
            inode = self._adopt(place, found)
        elif inode.kind == "file":
            self.look(inode, place)
        return inode

    def look(self, inode: Inode, place: str | None = None) -> None:
        """Take in what was done to a file by code that can't be seen."""
        known = self._known.get(inode.number)
        if known is None or inode.kind != "file":
            return
        places = [place] if place is not None else self.disk.paths_of(inode)
        if not places:
            return
        real = self.real(places[0])
        try:
            found = original(os.stat)(real)
        except OSError:
            return
        if (found.st_size, found.st_mtime_ns) == known[:2] or found.st_ino != known[2]:
            return
        self._unseen(places[0])
        if found.st_size > known[0]:
            self.disk.write(inode, known[0], _bytes_of(real, known[0]))
        else:
            data = _bytes_of(real)
            self.disk.resize(inode, len(data))
            self.disk.write(inode, 0, data)
        self.remember(inode, real)

    def flip(self, place: str, byte: int | None, bit: int) -> None:
        """A bit of a file is another one, on the disk and for all who read it.

        Raises:
            ValueError: it has no such byte.
        """
        inode, real = self.find(place), self.real(place)
        assert inode is not None
        data = bytearray(_bytes_of(real))
        at = len(data) // 2 if byte is None else byte
        if at >= len(data):
            raise ValueError(f"{place} has {len(data)} bytes, and no byte {at}")
        data[at] ^= 1 << bit
        self.disk.rot(inode, at, bit)
        descriptor = original(os.open)(real, os.O_RDWR)
        try:
            os.lseek(descriptor, at, os.SEEK_SET)
            original(os.write)(descriptor, bytes(data[at : at + 1]))
        finally:
            original(os.close)(descriptor)
        self.changes += 1
        self.remember(inode, real)

    def scan(self) -> None:
        """Take in all that was not seen."""
        there = {path for path, _, _ in self._walk()}
        for path in sorted(there):
            self.find(path)
        for path, _ in reversed(self.disk.now().nodes):
            if path not in there:
                self._unseen(path)
                self._drop(path)

    def _drop(self, place: str) -> None:
        inode = self.disk.find(place)
        if inode is not None:
            self.disk.remove(place)

    def _adopt(self, place: str, found: os.stat_result) -> Inode:
        real = self.real(place)
        if stat.S_ISDIR(found.st_mode):
            return self.disk.create(place, "folder")
        if stat.S_ISLNK(found.st_mode):
            return self.disk.create(place, "link", target=os.readlink(real))
        inode = self.disk.create(place)
        self.disk.write(inode, 0, _bytes_of(real))
        self.disk.close(inode)
        self.remember(inode, real)
        return inode

    def _unseen(self, place: str) -> None:
        self.changes += 1
        current = self._simulation.current
        rank = getattr(current.context, "rank", -1) if current is not None else -1
        try:
            size = os.lstat(self.real(place)).st_size
        except OSError:
            size = 0
        self._simulation.bus.record(stored(self._simulation.now_ns, rank, "unseen", self.shown(place), 0, size, ""))
        if self.shown(place) not in self.unseen:
            self.unseen.append(self.shown(place))

    def remember(self, inode: Inode, real: str = "") -> None:
        """This is what the file is, after something that was seen."""
        if inode.kind != "file":
            return
        if not real:
            places = self.disk.paths_of(inode)
            if not places:
                return
            real = self.real(places[0])
        try:
            found = original(os.stat)(real)
        except OSError:
            return
        inode.mode = stat.S_IMODE(found.st_mode)
        self._known[inode.number] = found.st_size, found.st_mtime_ns, found.st_ino

    def _walk(self) -> Iterator[tuple[str, str, Any]]:
        """Every path with its real one and what it is, folders before what is in them."""
        waiting = [""]
        while waiting:
            above = waiting.pop()
            with os.scandir(self.real(above)) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
            for entry in found:
                place = f"{above}/{entry.name}" if above else entry.name
                if entry.is_symlink():
                    yield place, entry.path, "link"
                elif entry.is_dir():
                    yield place, entry.path, "folder"
                    waiting.append(place)
                elif entry.is_file():
                    yield place, entry.path, "file"

    def files(self) -> Iterator[str]:
        """Where real files stand now."""
        return (path for path, _, kind in self._walk() if kind == "file")

    def contents(self) -> Iterator[tuple[str, str, bytes | None]]:
        """Every path with what it is ("file", "folder", "link") and holds, as the ranks find it now."""
        for path, real, kind in self._walk():
            if kind == "link":
                yield path, kind, os.fsencode(os.readlink(real))
            else:
                yield path, kind, _bytes_of(real) if kind == "file" else None

    def _held(self, real: str) -> bytes | memoryview:
        return self.spill.hold(_bytes_of(real))

    def _read(self, inode: Inode) -> bytes | memoryview:
        places = self.disk.paths_of(inode)
        try:
            return self._held(self.real(places[0])) if places else b""
        except OSError:  # code that can't be seen has taken it away
            return b""


def _bytes_of(real: str, offset: int = 0) -> bytes:
    with original(open)(real, "rb") as file:
        file.seek(offset)
        data: bytes = file.read()
    return data
