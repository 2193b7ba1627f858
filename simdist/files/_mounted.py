"""A disk of a world: the real folder, the model of what is durable, and how an effect goes by.

Every change that a rank makes goes through `MountedDisk.change`: it is announced, delayed and struck like any other
effect, done to the real file, then told to the model and recorded. What code has changed that can't be seen is found by
looking at the file before the model has to know it (`look`), and is recorded as "unseen".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from simdist.cluster import Host
from simdist.files._events import StorageCalled, WrittenInPartError
from simdist.files._left import put_back, words_of
from simdist.kernel import PASS, Simulation, stream
from simdist.process import SimProcess, carry_out
from simdist.records import disk_left, stored
from simdist.storage import PROFILES, Content, Disk, Draw, Inode, Mount, Range

__all__ = ["MountedDisk", "OpenFile"]


@dataclass(slots=True, eq=False)
class OpenFile:
    """A file that a rank has open for writing, or a folder."""

    inode: Inode
    process: SimProcess
    path: str
    appends: bool = False

    @property
    def cut_off(self) -> bool:
        """True if the process has ended, or its world: what it still holds in buffers is lost."""
        task = self.process.simulation.current
        return not self.process.running or task is None or task.doomed


class MountedDisk:
    """A disk at a real folder, for the length of a world.

    `outcome` says which of the outcomes the next crash leaves, counted from 0, the most suspicious first; None: the
    seed draws one.
    """

    def __init__(self, mount: Mount, simulation: Simulation, hosts: Iterable[Host], *, seed: int) -> None:
        self.folder = os.path.realpath(mount.folder)
        self.disk = Disk(PROFILES[mount.profile], read=self._read)
        self._given = os.path.abspath(mount.folder)
        self._mount = mount
        self._simulation = simulation
        self._hosts = tuple(hosts)
        self._seed = seed
        self._crashes = 0
        self._known: dict[int, tuple[int, int, int]] = {}  # what real files were when last looked at, by inode
        self.open: dict[int, OpenFile] = {}  # by descriptor
        self.changes = 0  # how often it has changed
        self.leave: Callable[[SimProcess], None]  # called by a process that ends by itself
        self.busy = False  # what is done now is no rank's doing
        self.unseen: list[str] = []  # paths that changed in ways that can't be seen
        for path, real, kind in self._walk():
            target = os.readlink(real) if kind == "link" else ""
            content = Content(size=os.lstat(real).st_size, load=lambda real=real: _bytes_of(real))  # type: ignore[misc]
            inode = self.disk.adopt(path, kind, content if kind == "file" else Content(), target)
            self.remember(inode, real)
        for host in self._hosts:
            host.listeners.append(self._on_host)

    # -- paths -------------------------------------------------------------------------------------------------------

    def place_of(self, path: Any, folder: int | None = None, *, follow: bool = False) -> str | None:
        """Where on the disk a path leads, "" for the disk itself; None if it leads elsewhere.

        `folder` is the descriptor that it is relative to. With `follow` a link at its end is followed.
        """
        try:
            name = os.fsdecode(path)
        except TypeError:
            return None
        if folder is not None and not os.path.isabs(name):
            opened = self.open.get(folder)
            if opened is None:
                return None
            name = os.path.join(self.folder, opened.path, name)
        full = os.path.abspath(name)
        if full.startswith(self._given) and self._given != self.folder:
            full = self.folder + full[len(self._given) :]
        if full != self.folder and not full.startswith(f"{self.folder}/"):
            return None
        above, last = os.path.split(full)
        full = os.path.realpath(full) if follow else os.path.join(os.path.realpath(above), last)
        if full == self.folder:
            return ""
        return full[len(self.folder) + 1 :] if full.startswith(f"{self.folder}/") else None

    def real(self, place: str) -> str:
        """The real path."""
        return os.path.join(self.folder, place)

    # -- changes -----------------------------------------------------------------------------------------------------

    def change(
        self,
        process: SimProcess,
        effect: str,
        path: str,
        act: Callable[[float], Any],
        *,
        offset: int = 0,
        size: int = 0,
        to: str = "",
        waits_for: int = 0,
    ) -> Any:
        """Change the disk: announce it, let time pass, do it. What `act` returns.

        `act` does it to the real file and tells the model; called with 0.5, it does half of it. `waits_for` are bytes
        that have to be written first.
        """
        simulation = self._simulation
        simulation.check()
        bus = simulation.bus
        event = StorageCalled(process, effect, path, offset, size, to)
        verdict = bus.announce(event) if bus.wants(StorageCalled) else PASS
        left = carry_out(process, verdict, effect, yields=True)
        duration_ns = self._mount.latency_ns
        if waits_for and self._mount.bandwidth:
            duration_ns += int(waits_for / self._mount.bandwidth * 1e9)
        if duration_ns:
            simulation.sleep(duration_ns)
        self.changes += 1
        if left is not None and left[0] == "during":
            result = act(0.5)
            self._strike(left[1])
            return result
        result = act(1.0)
        self._tell(process, effect, path, offset, size, to)
        if left is not None:
            self._strike(left[1])
        return result

    def _tell(self, process: SimProcess, effect: str, path: str, offset: int, size: int, to: str = "") -> None:
        self._simulation.bus.record(stored(self._simulation.now_ns, process.rank, effect, path, offset, size, to))

    def _strike(self, strike: Callable[[], None]) -> None:
        strike()
        self._simulation.sleep(0)

    def write(self, opened: OpenFile, offset: int, data: bytes, act: Callable[[bytes], int]) -> int:
        """Write bytes; how many were written. `act` writes to the real file."""
        if not data:
            return act(data)

        def write(part: float) -> int:
            self.look(opened.inode)
            self.disk.pin(opened.inode)
            count = act(data if part == 1 else data[: round(len(data) * part)])
            self.disk.write(opened.inode, offset, data[:count])
            self.remember(opened.inode)
            return count

        try:
            count: int = self.change(opened.process, "write", opened.path, write, offset=offset, size=len(data))
        except WrittenInPartError as short:
            count = write(min(short.count, len(data)) / len(data))
            self._tell(opened.process, "write", opened.path, offset, count)
        return count

    def resize(self, process: SimProcess, inode: Inode, path: str, size: int, act: Callable[[], Any]) -> Any:
        """Set a file's size."""

        def resize(_: float) -> Any:
            self.look(inode)
            self.disk.pin(inode)
            result = act()
            self.disk.resize(inode, size)
            self.remember(inode)
            return result

        return self.change(process, "truncate", path, resize, size=size)

    def sync(self, process: SimProcess, inode: Inode, path: str, *, data_only: bool, act: Callable[[], Any]) -> Any:
        """Make a file or a folder durable."""
        self.look(inode)

        def sync(_: float) -> Any:
            # Nothing is done to the real one: nobody cuts its power.
            if inode.kind == "folder":
                self.disk.sync_folder(inode)
            else:
                self.disk.sync_file(inode, data_only=data_only)

        effect = "fsync_dir" if inode.kind == "folder" else "fdatasync" if data_only else "fsync"
        waiting = sum(len(change.data) for change in inode.changes if change.data is not None)
        try:
            return self.change(process, effect, path, sync, waits_for=waiting)
        except OSError:
            self.disk.fail_sync(inode)
            raise

    def close(self, number: int) -> None:
        """A descriptor is about to be closed."""
        opened = self.open.pop(number)
        inode = opened.inode
        self.changes += 1
        if inode.kind == "file" and not opened.cut_off:
            self.look(inode)
            if not any(each.inode is inode for each in self.open.values()):
                self.disk.close(inode)

    # -- what was not seen -------------------------------------------------------------------------------------------

    def find(self, place: str) -> Inode | None:
        """What stands at a place, changes included that were not seen; None if there is nothing."""
        inode = self.disk.find(place)
        real = self.real(place)
        try:
            found = os.lstat(real)
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
            found = os.stat(real)
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
        self._simulation.bus.record(stored(self._simulation.now_ns, rank, "unseen", place, 0, size, ""))
        if place not in self.unseen:
            self.unseen.append(place)

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
            found = os.stat(real)
        except OSError:
            return
        inode.mode = stat.S_IMODE(found.st_mode)
        self._known[inode.number] = found.st_size, found.st_mtime_ns, found.st_ino

    # -- crashes -----------------------------------------------------------------------------------------------------

    def _on_host(self, host: Host) -> None:
        if host.up:
            return
        self.busy = True
        try:
            self.scan()
            if any(each.up and not each.failing for each in self._hosts):
                self._lose_client(host)
            else:
                self._lose_power(host)
        finally:
            self.busy = False

    def _lose_power(self, host: Host) -> None:
        if not self.disk.pending:
            return
        image = self._chosen(host)
        now = self.disk.now()
        for path, text in words_of(self.disk, now, image):
            self._simulation.bus.record(disk_left(self._simulation.now_ns, -1, path, text))
        put_back(self.disk, now, image, self.folder)
        self.disk.settle(image)
        self.open.clear()
        self._known.clear()
        for path, state in image.nodes:
            self.remember(self.disk.inode_of(state), self.real(path))

    def _chosen(self, host: Host) -> Any:
        if host.outcome is None:
            return self.disk.drawn(self._draws())
        image = self.disk.now()
        for index, image in enumerate(self.disk.outcomes()):  # noqa: B007 - the last, if there are not so many
            if index == host.outcome:
                break
        return image

    def _lose_client(self, host: Host) -> None:
        """A host is gone, its server is not: what it had not sent is lost. Files that were closed are safe."""
        draw = self._draws()
        for opened in list(self.open.values()):
            inode = opened.inode
            if opened.process.host is not host or not inode.changes or inode.kind != "file":
                continue
            file = Range(inode, PROFILES["nfs"], {change.entry for change in inode.changes})
            state = file.oldest() if host.outcome is not None else file.drawn(draw)
            data = file.content(state)
            if data == file.content(file.newest()):
                continue
            text = f"has {len(data)} of {inode.size} bytes, those that the server had"
            self._simulation.bus.record(disk_left(self._simulation.now_ns, -1, opened.path, text))
            self.disk.resize(inode, 0)
            self.disk.write(inode, 0, data)
            for place in self.disk.paths_of(inode)[:1]:
                with open(self.real(place), "r+b") as file_there:
                    file_there.truncate(0)
                    file_there.write(data)
            self.remember(inode)
        for number in [number for number, each in self.open.items() if each.process.host is host]:
            del self.open[number]

    def _draws(self) -> Draw:
        self._crashes += 1
        numbers = stream(self._seed, f"disk, crash {self._crashes}")
        return lambda below: int(numbers.integers(below))

    # -- the real folder ---------------------------------------------------------------------------------------------

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

    def contents(self) -> Iterator[tuple[str, str, bytes | None]]:
        """Every path with what it is ("file", "folder", "link") and holds, as the ranks find it now."""
        for path, real, kind in self._walk():
            if kind == "link":
                yield path, kind, os.fsencode(os.readlink(real))
            else:
                yield path, kind, _bytes_of(real) if kind == "file" else None

    def hosts_of_ranks(self) -> tuple[str, ...]:
        """The host of each rank that is alive, by rank."""
        found = [(each, host.name) for host in self._hosts for each in host.residents if isinstance(each, SimProcess)]
        return tuple(name for _, name in sorted((each.rank, name) for each, name in found if each.running))

    def _read(self, inode: Inode) -> bytes:
        places = self.disk.paths_of(inode)
        try:
            return _bytes_of(self.real(places[0])) if places else b""
        except OSError:  # code that can't be seen has taken it away
            return b""


def _bytes_of(real: str, offset: int = 0) -> bytes:
    with open(real, "rb") as file:
        file.seek(offset)
        return file.read()
