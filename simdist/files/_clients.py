"""The hosts' views of a file server's disk: each host has a client with caches.

Close-to-open: the server gets a host's writes when the file is closed or synced, and a client that opens the file then
sees them; another host that opens the file before sees the server's bytes. Late names: a host that has looked for a
name in vain, or has read a folder, does not see what another host puts there for `names_late_ns`; it sees its own
changes. Silly rename: a file that loses its name while a process of the host has it open gets another one, `.nfs...`,
until the last of them closes it. If the host dies, that file stays.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from io import IOBase
from typing import Protocol

from simdist.kernel import Simulation
from simdist.process import SimProcess
from simdist.storage import Disk, Inode

__all__ = ["Clients"]


class _Opened(Protocol):
    """A file that a process has open for writing."""

    inode: Inode
    process: SimProcess


class Clients:
    """The clients of all hosts. `writers` are the files that processes have open for writing, by descriptor."""

    def __init__(
        self, disk: Disk, simulation: Simulation, writers: Callable[[], Iterable[_Opened]], names_late_ns: int
    ) -> None:
        self._disk = disk
        self._simulation = simulation
        self._writers = writers
        self._readers: list[tuple[weakref.ref[IOBase], SimProcess, Inode]] = []
        self._missed: dict[tuple[str, str], int] = {}  # by host and place: time of a look-up in vain
        self._listed: dict[tuple[str, str], tuple[int, set[str]]] = {}  # by host and folder: when, and the names
        self._silly: dict[str, tuple[Inode, SimProcess]] = {}
        self._count = 0
        self.names_late_ns = names_late_ns

    # -- bytes -------------------------------------------------------------------------------------------------------

    def served(self, process: SimProcess, inode: Inode) -> bytes | None:
        """The server's bytes of a file, if its writers on other hosts have others; else None."""
        if inode.kind != "file" or not inode.changes:
            return None
        hosts = [each.process.host for each in self._writers() if each.inode is inode]
        return None if process.host in hosts or not hosts else bytes(inode.base.data)

    def reads(self, process: SimProcess, inode: Inode, file: IOBase) -> None:
        """Note that a process has a file open for reading, until `file` is closed."""
        self._readers = [each for each in self._readers if self._reads(each)]
        self._readers.append((weakref.ref(file), process, inode))

    @staticmethod
    def _reads(reader: tuple[weakref.ref[IOBase], SimProcess, Inode]) -> bool:
        file = reader[0]()
        return file is not None and not file.closed and reader[1].running

    # -- names -------------------------------------------------------------------------------------------------------

    def hides(self, process: SimProcess, place: str, *, there: bool) -> bool:
        """True if this host does not see a name on the server's disk yet. Remembers a name that was not `there`."""
        if not self.names_late_ns or not place:
            return False
        key, now = (process.host.name, place), self._simulation.now_ns
        missed = self._missed.get(key)
        if missed is not None and now < missed + self.names_late_ns:
            return there
        self._missed.pop(key, None)
        if not there:
            self._missed[key] = now
        return False

    def listed(self, process: SimProcess, folder: str, names: list[str]) -> list[str]:
        """The names in a folder that this host sees; names that are gone are never among them."""
        if not self.names_late_ns:
            return names
        key, now = (process.host.name, folder), self._simulation.now_ns
        known = self._listed.get(key)
        if known is None or now >= known[0] + self.names_late_ns:
            known = self._listed[key] = now, set(names)
        return [name for name in names if name in known[1]]

    def made(self, process: SimProcess, place: str) -> None:
        """Note that the host itself has put something there."""
        self._missed.pop((process.host.name, place), None)
        folder, _, name = place.rpartition("/")
        known = self._listed.get((process.host.name, folder))
        if known is not None:
            known[1].add(name)

    def forget(self, host: str) -> None:
        """Forget a host that has gone down, with its caches and its processes' open files."""
        self._missed = {key: when for key, when in self._missed.items() if key[0] != host}
        self._listed = {key: when for key, when in self._listed.items() if key[0] != host}
        self._silly = {place: each for place, each in self._silly.items() if each[1].host.name != host}

    # -- files without a name ----------------------------------------------------------------------------------------

    def silly_name(self, process: SimProcess, place: str, inode: Inode) -> str | None:
        """The name that a file gets instead of losing its own; None if no process of the host has it open."""
        if inode.kind != "file" or place in self._silly or not self._is_open(process, inode):
            return None
        folder = place.rpartition("/")[0]
        self._count += 1
        to = os.path.join(folder, f".nfs{inode.number:016x}{self._count:08x}")
        self._silly[to] = inode, process
        return to

    def _is_open(self, process: SimProcess, inode: Inode) -> bool:
        host = process.host
        writing = any(e.inode is inode and e.process.host is host and e.process.running for e in self._writers())
        reading = any(r[2] is inode and r[1].host is host and self._reads(r) for r in self._readers)
        return writing or reading

    def closed(self) -> list[tuple[SimProcess, str]]:
        """The silly names of files that no process has open any more, and the processes that removed them."""
        gone = []
        for place, (inode, process) in list(self._silly.items()):
            if not self._is_open(process, inode):
                del self._silly[place]
                gone.append((process, place))
        return gone
