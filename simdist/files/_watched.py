"""A real folder and the model of its durable content, kept in step.

`MountedDisk` reports what ranks do. Changes by code that cannot be noticed are found by looking at the file before
the model has to know them (`look`), and are recorded as "unseen".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Literal

from simdist.files._spill import Spill
from simdist.kernel import Simulation
from simdist.process import original
from simdist.records import stored
from simdist.storage import PROFILES, Content, Disk, Inode

__all__ = ["WatchedFolder"]


class WatchedFolder:
    """A folder, and the disk that it stands for. The content at the beginning is durable."""

    def __init__(self, folder: str, profile: str, simulation: Simulation, owner: str = "") -> None:
        self.folder = os.path.realpath(folder)
        self.spill = Spill(lambda: self.disk.held_bytes)
        self.disk = Disk(PROFILES[profile], read=self._read, hold=self.spill.hold)
        self.owner = owner  # the host that it belongs to; "" if all see it
        self.changes = 0  # how often it has changed
        self.unseen: list[str] = []  # paths that changed unnoticed
        self._simulation = simulation
        self._known: dict[int, tuple[int, int, int]] = {}  # size, time and inode number of real files at the last look
        for path, real, kind in self._walk():
            target = os.readlink(real) if kind == "link" else ""
            content = Content(size=os.lstat(real).st_size, load=lambda real=real: self._held(real))  # type: ignore[misc]
            inode = self.disk.adopt(path, kind, content if kind == "file" else Content(), target)
            self.remember(inode, real)
        self.device = os.stat(self.folder).st_dev

    def shown(self, place: str) -> str:
        """The name of a place in records."""
        return f"{self.owner}:{place}" if self.owner else place

    def real(self, place: str) -> str:
        """The real path."""
        return os.path.join(self.folder, place)

    def find(self, place: str) -> Inode | None:
        """What is at a place, including unnoticed changes; None if there is nothing."""
        above = place.rpartition("/")[0]
        if above and self.disk.find(above) is None:
            self.find(above)
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
        if inode is not None and known is not None and known[2] == found.st_ino:
            self.look(inode, place)
            return inode
        if inode is not None and known is None and inode.kind != "file":
            return inode
        self._unseen(place)
        moved = self._come_from(place, found)
        if moved is not None:
            return moved
        if inode is not None:
            self._drop(place)
        return self._adopt(place, found)

    def _come_from(self, place: str, found: os.stat_result) -> Inode | None:
        """A file that unnoticed code has renamed or linked to a place; None if it is new there."""
        for number, known in self._known.items():
            if known[2] != found.st_ino or (known[0] >= 0 and known[:2] != (found.st_size, found.st_mtime_ns)):
                continue
            inode = self.disk.numbered(number)
            before = [] if inode is None else self.disk.paths_of(inode)
            if inode is None or not before:
                continue
            there = self.disk.find(place)
            left = {path: self._real_number(path) for path in before}
            gone = next((path for path, real in left.items() if real != known[2]), None)
            if gone is None:
                self.disk.link(inode, place)
            elif there is not None and left[gone] == self._known.get(there.number, (0, 0, -1))[2]:
                self.disk.exchange(gone, place)
            else:
                self.disk.rename(gone, place)
            return inode
        return None

    def _real_number(self, place: str) -> int:
        try:
            number: int = original(os.lstat)(self.real(place)).st_ino
        except OSError:
            return -1
        return number

    def inode_of_real(self, number: int) -> Inode | None:
        """The file or folder whose real one has this number; None if none that was looked at has it."""
        for each, known in self._known.items():
            inode = self.disk.numbered(each) if known[2] == number else None
            if inode is not None and self.disk.paths_of(inode):
                return inode
        return None

    def look(self, inode: Inode, place: str | None = None, *, closely: bool = False) -> None:
        """Take in what unnoticed code has done to a file.

        An unchanged size and time mean that nothing was done, unless the caller wants to look `closely`.
        """
        known = self._known.get(inode.number)
        if known is None or inode.kind != "file":
            return
        real = self.real_of(inode) if place is None else self.real(place)
        if real is None:
            return
        try:
            found = original(os.stat)(real)
        except OSError:
            return
        if ((found.st_size, found.st_mtime_ns) == known[:2] and not closely) or found.st_ino != known[2]:
            return
        before = inode.content
        if closely and before is None:
            return
        data = _bytes_of(real)
        if closely and before is not None and data == before.data:
            return
        self._unseen(place or (self.disk.paths_of(inode) or [""])[0])
        if before is not None:
            if len(data) < before.size:
                self.disk.resize(inode, len(data))
            for start, end in _differences(bytes(before.data), data, self.disk.profile.block_bytes):
                self.disk.write(inode, start, data[start:end])
        elif found.st_size > known[0]:
            self.disk.write(inode, known[0], data[known[0] :])
        else:
            self.disk.resize(inode, len(data))
            self.disk.write(inode, 0, data)
        self.remember(inode, real)

    def real_of(self, inode: Inode) -> str | None:
        """A real path at which a file can be read; None if there is none any more."""
        places = self.disk.paths_of(inode)
        return self.real(places[0]) if places else None

    def flip(self, place: str, byte: int | None, bit: int) -> None:
        """Flip a bit of a file, on the disk and for all readers.

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

    def scan_folder(self, place: str) -> None:
        """Take in what unnoticed code has done to the names in a folder."""
        try:
            names = sorted(os.listdir(self.real(place)))
        except OSError:
            return
        above = f"{place}/" if place else ""
        for name in names:
            self.find(above + name)
        for path, _ in reversed(self.disk.now().nodes):
            if path.rpartition("/")[0] == place and self._real_number(path) < 0:
                self._unseen(path)
                self._drop(path)

    def scan(self) -> None:
        """Take in all unnoticed changes."""
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
            folder = self.disk.create(place, "folder")
            self.remember(folder, real)
            return folder
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
        """Remember the real file or folder as it is now, after a change that was noticed."""
        if inode.kind == "link":
            return
        where = real or self.real_of(inode)
        if where is None:
            return
        try:
            found = original(os.stat)(where)
        except OSError:
            return
        if inode.kind == "folder":
            self._known[inode.number] = -1, 0, found.st_ino
        else:
            inode.mode = stat.S_IMODE(found.st_mode)
            self._known[inode.number] = found.st_size, found.st_mtime_ns, found.st_ino

    def _walk(self) -> Iterator[tuple[str, str, Literal["file", "folder", "link"]]]:
        """Every path with its real path and kind, folders before their content."""
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
        """The paths of the real files that exist now."""
        return (path for path, _, kind in self._walk() if kind == "file")

    def contents(self) -> Iterator[tuple[str, str, bytes | None]]:
        """Every path with its kind ("file", "folder", "link") and content, as the ranks find it now."""
        for path, real, kind in self._walk():
            if kind == "link":
                yield path, kind, os.fsencode(os.readlink(real))
            else:
                yield path, kind, _bytes_of(real) if kind == "file" else None

    def _held(self, real: str) -> bytes | memoryview:
        return self.spill.hold(_bytes_of(real))

    def _read(self, inode: Inode) -> bytes | memoryview:
        real = self.real_of(inode)
        try:
            return self._held(real) if real else b""
        except OSError:  # unnoticed code has removed it
            return b""


def _differences(before: bytes, after: bytes, block: int) -> Iterator[tuple[int, int]]:
    """The runs of blocks that differ in content: where each begins and ends."""
    start = -1
    for at in range(0, len(after), block):
        same = before[at : at + block] == after[at : at + block]
        if same and start >= 0:
            yield start, at
            start = -1
        elif not same and start < 0:
            start = at
    if start >= 0:
        yield start, len(after)


def _bytes_of(real: str, offset: int = 0) -> bytes:
    with original(open)(real, "rb") as file:
        file.seek(offset)
        data: bytes = file.read()
    return data
