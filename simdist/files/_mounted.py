"""A disk of a world: the real folder, the model of what is durable, and how an effect is processed.

Every change that a rank makes goes through `MountedDisk.change`: it is announced, delayed and struck like any other
effect, done to the real file, then to the model, and recorded.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from simdist.cluster import Host
from simdist.errors import SimdistError
from simdist.files._clients import Clients
from simdist.files._events import StorageCalled
from simdist.files._left import put_back, words_of
from simdist.files._looks import Looks
from simdist.files._old_times import OldTimes
from simdist.files._watched import WatchedFolder
from simdist.kernel import PASS, Simulation, stream
from simdist.process import FileTimes, SimProcess, carry_out, moved_file, original, touched_folder, wrote_file
from simdist.records import disk_left, stored, written_late
from simdist.storage import PROFILES, Draw, Image, Inode, Mount, Range

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath

__all__ = ["MountedDisk", "OpenFile"]

_SYNC, _DSYNC = getattr(os, "O_SYNC", -1), getattr(os, "O_DSYNC", 0)
_AGAIN = ("create", "fdatasync", "fsync", "fsync_dir", "truncate", "write")

_T = TypeVar("_T")


@dataclass(slots=True)
class _Payload:
    """The bytes of a write, which a verdict may change."""

    data: bytes


@dataclass(slots=True, eq=False)
class OpenFile:
    """A file that a rank has open for writing, or a folder.

    `syncs` is what each write to it waits for: "data" (O_DSYNC), "all" (O_SYNC), or nothing.
    """

    inode: Inode
    process: SimProcess
    path: str
    appends: bool = False
    syncs: Literal["", "data", "all"] = ""

    @classmethod
    def with_flags(cls, inode: Inode, process: SimProcess, path: str, flags: int) -> OpenFile:
        """Return the file as opened with these flags of open(2)."""
        syncs: Literal["", "data", "all"] = ""
        if flags & _SYNC == _SYNC:  # on Linux O_DSYNC is one of its bits
            syncs = "all"
        elif flags & _DSYNC:
            syncs = "data"
        return cls(inode, process, path, bool(flags & os.O_APPEND), syncs)

    @property
    def cut_off(self) -> bool:
        """True if the process has ended, or its world: the content of its buffers is lost."""
        task = self.process.simulation.current
        return not self.process.running or task is None or task.doomed


class MountedDisk(WatchedFolder):
    """A disk at a real folder, for the length of a world.

    `outcome` selects the outcome that the next crash leaves, counted from 0, the most suspicious first; None: the
    seed draws one.
    """

    def __init__(
        self,
        mount: Mount,
        simulation: Simulation,
        hosts: Iterable[Host],
        times: FileTimes,
        *,
        seed: int,
        owner: str = "",
    ) -> None:
        self.open: dict[int, OpenFile] = {}  # by descriptor
        super().__init__(os.fspath(mount.folder), mount.profile, simulation, owner)
        self._times = OldTimes(times)
        self._given = os.path.abspath(mount.folder)
        self._mount = mount
        self._hosts = tuple(hosts)
        self._seed = seed
        self._serial = f" of {owner}" if owner else ""
        self._crashes = 0
        self.jitter = 0.0  # by how much effects vary, as a share of their time
        self.busy = False  # no rank causes what is done now
        self.looks: Looks | None = None  # which files are looked at, if that is noted
        self.clients: Clients | None = None  # each host's view of a file server's disk; None: all see the same
        if mount.profile == "nfs" and not owner:
            self.clients = Clients(self.disk, simulation, lambda: list(self.open.values()), mount.names_late_ns)

    # -- paths -------------------------------------------------------------------------------------------------------

    def place_of(self, path: StrOrBytesPath, folder: int | None = None, *, follow: bool = False) -> str | None:
        """The place on the disk to which a path leads, "" for the disk itself; None if it leads elsewhere.

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

    def place_of_descriptor(self, number: int) -> str | None:
        """The place on the disk of the file to which a descriptor leads; None if it is elsewhere, or has no name."""
        try:
            said = original(os.fstat)(number)
        except OSError:
            return None
        if said.st_dev != self.device or not (stat.S_ISREG(said.st_mode) or stat.S_ISDIR(said.st_mode)):
            return None
        try:
            real = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # a system without /proc: the inode number identifies the file
            return next((path for path, _, _ in self._walk() if self._real_number(path) == said.st_ino), None)
        if real != self.folder and not real.startswith(f"{self.folder}/"):
            return None
        place = real[len(self.folder) + 1 :]
        return place if self._real_number(place) == said.st_ino else None

    def real_of(self, inode: Inode) -> str | None:
        """A real path at which a file can be read; through a descriptor that has it open if it has no name."""
        real = super().real_of(inode)
        if real is None and inode.kind == "file":
            number = next((number for number, each in self.open.items() if each.inode is inode), None)
            real = None if number is None else f"/proc/self/fd/{number}"
        return real

    @property
    def takes_time(self) -> bool:
        """True if a change is not done at once."""
        return self._mount.latency_ns > 0

    def pin(self, inode: Inode, place: str | None = None) -> None:
        """Keep a file's durable content and its times; called before it changes, or loses the name `place`."""
        if place is not None or not inode.changes:
            real = self.real_of(inode) if place is None else self.real(place)
            if real is not None:
                self._times.keep(inode, real)
        self.disk.pin(inode)

    # -- changes -----------------------------------------------------------------------------------------------------

    def change(
        self,
        process: SimProcess,
        effect: str,
        path: str,
        act: Callable[[float], _T],
        *,
        offset: int = 0,
        size: int = 0,
        to: str = "",
        waits_for: int = 0,
        payload: _Payload | None = None,
        takes: Collection[str] = (),
    ) -> _T | None:
        """Change the disk: announce it, let time pass, do it. Returns `act`'s result, or None if a verdict drops it.

        `act` does it to the real file and to the model; called with 0.5, it does half of it. `waits_for` are bytes
        that have to be written first. `takes` are further fields of a verdict that it supports; see `carry_out`.
        """
        simulation = self._simulation
        simulation.check()
        bus = simulation.bus
        event = StorageCalled(process, effect, self.shown(path), offset, size, to)
        while True:
            verdict = bus.announce(event) if bus.wants(StorageCalled) else PASS
            try:
                left = carry_out(process, verdict, effect, yields=True, takes=takes)
                break
            except InterruptedError:  # Python calls again (PEP 475), except for effects that Linux never interrupts
                if effect not in _AGAIN:
                    raise
        duration_ns = self._mount.latency_ns
        if waits_for and self._mount.bandwidth:
            duration_ns += int(waits_for / self._mount.bandwidth * 1e9)
        if duration_ns:
            if self.jitter:
                duration_ns += simulation.policy.jitter_ns(round(duration_ns * self.jitter))
            simulation.sleep(duration_ns)
        self.changes += 1
        if any(each.life > process.life for each, _ in self._processes()):
            bus.record(written_late(simulation.now_ns, process.rank, self.shown(path), process.life))
        if payload is not None and verdict.change is not None:
            payload.data = _changed(payload.data, verdict.change)
        during = left is not None and left[0] == "during"
        share = 0.5 if during else 1.0
        if verdict.part_bytes is not None:
            share = min(verdict.part_bytes / size, 1.0) if size else 1.0
        if self.looks is not None:
            self._note(self.looks, effect, path, to, size, is_done=share == 1.0 and not verdict.drop)
        result = None if verdict.drop else act(share)
        self._note_times(effect, path, to)
        if self.clients is not None and effect not in ("unlink", "rmdir"):
            self.clients.made(process, to if effect in ("rename", "link") else path)
        if not during:
            self._report(process, effect, path, offset, round(size * share), to)
        if left is not None:
            self._strike(left[1])
        return result

    def _note(self, looks: Looks, effect: str, path: str, to: str, size: int, *, is_done: bool) -> None:
        if effect in ("rename", "link"):
            looks.below(self.real(path))  # its bytes go on under another name
        lost = {"truncate": "" if size else path, "unlink": path, "rename": to}.get(effect)
        if lost and is_done:
            looks.overwrites(self.real(lost))

    def _note_times(self, effect: str, path: str, to: str) -> None:
        real = self.real(path)
        if effect in ("write", "truncate"):
            wrote_file(real)
        elif effect in ("create", "mkdir"):
            wrote_file(real, made=True)
        elif effect in ("rename", "link"):
            moved_file(real, self.real(to), linked=effect == "link")
        elif effect in ("symlink", "unlink", "rmdir"):
            touched_folder(real)

    def _report(self, process: SimProcess, effect: str, path: str, offset: int, size: int, to: str = "") -> None:
        self._simulation.bus.record(
            stored(self._simulation.now_ns, process.rank, effect, self.shown(path), offset, size, to)
        )

    def _strike(self, strike: Callable[[], None]) -> None:
        strike()
        self._simulation.sleep(0)

    def keep_open(self, process: SimProcess, place: str, inode: Inode) -> bool:
        """Give another name to a file that a process of the host has open; False if none has."""
        to = None if self.clients is None else self.clients.silly_name(process, place, inode)
        if to is None:
            return False
        self.change(process, "rename", place, lambda _: self._rename(place, to), to=to)
        return True

    def _rename(self, place: str, to: str) -> None:
        original(os.rename)(self.real(place), self.real(to))
        self.disk.rename(place, to)
        for opened in self.open.values():
            if opened.path == place:
                opened.path = to

    def forget_closed(self) -> None:
        """Remove files without a name that no process has open any more."""
        for process, place in [] if self.clients is None else self.clients.closed():
            if self.disk.find(place) is not None:
                original(os.unlink)(self.real(place))
                self.disk.remove(place)
                self.changes += 1
                self._report(process, "unlink", place, 0, 0)

    def write(
        self,
        opened: OpenFile,
        offset: int,
        data: bytes,
        act: Callable[[bytes], int],
        *,
        syncs: Literal["", "data", "all"] = "",
    ) -> int:
        """Write bytes; returns how many were written. `act` writes to the real file.

        A write that waits until it is durable, by `syncs` or as its file was opened, is a write and a sync.
        """
        if not data:
            return act(data)
        payload = _Payload(data)

        def write(part: float) -> int:
            data = payload.data
            self.look(opened.inode)
            self.pin(opened.inode)
            count = act(data if part == 1 else data[: round(len(data) * part)])
            self.disk.write(opened.inode, offset, data[:count])
            self.remember(opened.inode)
            return count

        count = self.change(
            *(opened.process, "write", opened.path, write),
            offset=offset,
            size=len(data),
            payload=payload,
            takes=("change", "drop", "part_bytes"),
        )
        if syncs != "all":
            syncs = opened.syncs or syncs
        if syncs:
            self.sync(opened.process, opened.inode, opened.path, data_only=syncs == "data", act=lambda: None)
        return len(data) if count is None else count

    def resize(
        self,
        process: SimProcess,
        inode: Inode,
        path: str,
        size: int,
        act: Callable[[], _T],
        *,
        allocates: bool = False,
    ) -> _T | None:
        """Set a file's size; with `allocates` its space on the disk is allocated up to there."""

        def resize(_: float) -> _T:
            self.look(inode)
            self.pin(inode)
            result = act()
            (self.disk.allocate if allocates else self.disk.resize)(inode, size)
            self.remember(inode)
            return result

        return self.change(process, "truncate", path, resize, size=size)

    def sync(self, process: SimProcess, inode: Inode, path: str, *, data_only: bool, act: Callable[[], object]) -> None:
        """Make a file or a folder durable."""
        if inode.kind == "folder":
            self.scan_folder(path)
        self.look(inode)

        def sync(_: float) -> None:
            # The real file is not synced: it loses no power.
            if inode.kind == "folder":
                self.disk.sync_folder(inode)
            elif not self._is_dirty_elsewhere(process, inode):
                self.disk.sync_file(inode, data_only=data_only)

        effect = "fsync_dir" if inode.kind == "folder" else "fdatasync" if data_only else "fsync"
        waiting = sum(len(change.data) for change in inode.changes if change.data is not None)
        try:
            self.change(process, effect, path, sync, waits_for=waiting, takes=("drop",))
        except OSError:
            self.disk.fail_sync(inode)
            raise

    def close(self, number: int) -> None:
        """Note that a descriptor is about to be closed."""
        opened = self.open.pop(number)
        inode = opened.inode
        self.changes += 1
        if inode.kind == "file" and not opened.cut_off:
            self.look(inode)
            if not any(each.inode is inode for each in self.open.values()):
                self.disk.close(inode)
                self.disk.release(inode)
            self.forget_closed()

    def sync_mapped(self, process: SimProcess, device: int, number: int) -> bool:
        """Make a file durable whose mapping was flushed, by its device and number; False if it is elsewhere."""
        found = self.mapped(device, number)
        if found is not None:
            self.sync(process, *found, data_only=True, act=lambda: None)
        return found is not None

    def mapped(self, device: int, number: int) -> tuple[Inode, str] | None:
        """The file with a device and a number, and its path, after taking in stores to it; None if it is elsewhere."""
        if device != self.device:
            return None
        inode = self.inode_of_real(number)
        if inode is None:
            self.scan()
            inode = self.inode_of_real(number)
        path = "" if inode is None else next(iter(self.disk.paths_of(inode)), "")
        if inode is None or not path:
            return None
        self.look(inode, closely=True)  # some file systems keep no time of a store
        return inode, path

    def synced_unseen(self, process: SimProcess, inode: Inode | None, path: str, *, data_only: bool = False) -> None:
        """Make a file or folder durable, or everything for None: code that cannot be stopped has synced it."""
        self.scan()
        self.changes += 1
        if inode is None:
            self._sync_whole(process)
        elif inode.kind == "folder":
            self.disk.sync_folder(inode)
        elif not self._is_dirty_elsewhere(process, inode):
            self.disk.sync_file(inode, data_only=data_only)
            self.pin(inode)  # the next write to it cannot be noticed either
        whole = "sync" if inode is None else "fsync_dir" if inode.kind == "folder" else "fsync"
        self._report(process, "fdatasync" if data_only and whole == "fsync" else whole, path, 0, 0)

    def sync_changed(self, process: SimProcess) -> None:
        """Make changes durable that no noticed call made: some mapping was flushed."""
        known = dict(self._known)
        self.scan()
        for number, state in self._known.items():
            if state != known.get(number):
                for path, inode in [(path, self.disk.find(path)) for path, _ in self.disk.now().nodes]:
                    if inode is not None and inode.number == number:
                        self.sync(process, inode, path, data_only=True, act=lambda: None)
                        break

    def sync_all(self, process: SimProcess) -> None:
        """Make everything durable."""

        def act(_: float) -> None:
            self.scan()
            self._sync_whole(process)

        self.change(process, "sync", "", act, takes=("drop",))

    def _sync_whole(self, process: SimProcess) -> None:
        if self.clients is None:
            self.disk.sync()
            return
        for path, _ in self.disk.now().nodes:  # the server has the names already
            inode = self.disk.find(path)
            if inode is not None and inode.changes and not self._is_dirty_elsewhere(process, inode):
                self.disk.sync_file(inode)

    def _is_dirty_elsewhere(self, process: SimProcess, inode: Inode) -> bool:
        """True if a client on another host has unsent bytes of a file: a sync here does not send them."""
        return self.clients is not None and self.clients.served(process, inode) is not None

    # -- crashes -----------------------------------------------------------------------------------------------------

    def lose(self, host: Host) -> None:
        """Lose what a crash of this host loses: it has gone down."""
        self.busy = True
        if self.clients is not None:
            self.clients.forget(host.name)
        try:
            self.scan()
            if any(each.up and not each.failing for each in self._hosts):
                self._lose_client(host)
            else:
                self._lose_power(host)
        finally:
            self.busy = False

    def _lose_power(self, host: Host) -> None:
        if host.disks == "swapped":
            self.disk.sync()
            self.open.clear()
            return
        if not self.disk.pending:
            return
        image = self._chosen(host)
        now = self.disk.now()
        for path, text in words_of(self.disk, now, image):
            self._simulation.bus.record(disk_left(self._simulation.now_ns, -1, self.shown(path), text))
        times = self._times.left(self.disk, now, image, self.folder)
        put_back(self.disk, now, image, self.folder)
        self._times.put_back(times)
        self.disk.settle(image)
        self.open.clear()
        self._known.clear()
        for path, state in image.nodes:
            self.remember(self.disk.inode_of(state), self.real(path))

    def _chosen(self, host: Host) -> Image:
        if host.outcome is None:
            return self.disk.drawn(self._draws())
        image = self.disk.now()
        for index, image in enumerate(self.disk.outcomes()):  # noqa: B007 - the last, if there are not so many
            if index == host.outcome:
                break
        return image

    def _lose_client(self, host: Host) -> None:
        """Lose a host's unsent bytes, while its server stays up. Files that were closed are safe."""
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
            self._simulation.bus.record(disk_left(self._simulation.now_ns, -1, self.shown(opened.path), text))
            is_old = data == inode.base.data
            self.disk.resize(inode, 0)
            self.disk.write(inode, 0, data)
            for place in self.disk.paths_of(inode)[:1]:
                times = self._times.of(inode, self.real(place), is_old=is_old)
                with open(self.real(place), "r+b") as file_there:
                    file_there.truncate(0)
                    file_there.write(data)
                self._times.put_back({self.real(place): times})
            self.remember(inode)
        for number in [number for number, each in self.open.items() if each.process.host is host]:
            del self.open[number]

    def wipe(self) -> None:
        """Replace the disk by an empty one: it is gone with its machine."""
        for path, _ in reversed(self.disk.now().nodes):
            self._simulation.bus.record(disk_left(self._simulation.now_ns, -1, self.shown(path), "is gone"))
            self.disk.remove(path)
        self.disk.sync()
        self.changes += 1
        self.open.clear()
        for entry in os.scandir(self.folder):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)

    def go_to(self, host: Host, folder: str) -> None:
        """Move the disk to another machine."""
        self.folder = self._given = folder
        self._hosts, self.owner = (host,), host.name
        self.changes += 1

    def _draws(self) -> Draw:
        self._crashes += 1
        numbers = stream(self._seed, f"disk{self._serial}, crash {self._crashes}")
        return lambda below: int(numbers.integers(below))

    def hosts_of_ranks(self) -> tuple[str, ...]:
        """The host of each rank that is alive, by rank."""
        return tuple(name for _, name in sorted((each.rank, name) for each, name in self._processes()))

    def _processes(self) -> Iterator[tuple[SimProcess, str]]:
        """The processes that are alive, each with the name of its host."""
        for host in self._hosts:
            for each in host.residents:
                if isinstance(each, SimProcess) and each.running:
                    yield each, host.name


def _changed(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    changed = change(data)
    if len(changed) != len(data):
        raise SimdistError(f"a judge makes {len(changed)} bytes of the {len(data)} of a write; there must be as many")
    return changed
