"""The disks of a world: the one that all ranks see, and the hosts' own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from simdist.cluster import Host
from simdist.files._looks import Looks
from simdist.files._mounted import MountedDisk
from simdist.kernel import Simulation
from simdist.process import FileTimes, SimProcess
from simdist.storage import Mount

__all__ = ["Disks"]


class Disks:
    """All disks of a mount.

    `leave` flushes the files of a process that ends on its own; `watch` makes ranks' looks known.
    """

    def __init__(
        self,
        mount: Mount,
        simulation: Simulation,
        hosts: Iterable[Host],
        times: FileTimes,
        *,
        seed: int,
        leave: Callable[[SimProcess], None],
        watch: Callable[[], None],
    ) -> None:
        self._leave = leave
        self._watch = watch
        self._hosts = tuple(hosts)
        self._shared = MountedDisk(mount, simulation, self._hosts, times, seed=seed)
        self._moving = False  # disks are being replaced
        self._local: dict[str, MountedDisk] = {}
        for host in self._hosts:
            if mount.local is not None:
                folder = os.path.join(os.path.realpath(mount.local), host.name)
                Path(folder).mkdir(exist_ok=True)
                own = replace(mount, folder=folder, profile=mount.local_profile)
                self._local[host.name] = MountedDisk(own, simulation, [host], times, seed=seed, owner=host.name)
            host.listeners.append(self._on_host)

    def __iter__(self) -> Iterator[MountedDisk]:
        yield self._shared
        yield from self._local.values()

    def of(self, host: Host) -> Iterator[MountedDisk]:
        """The disks that the ranks of a host see."""
        yield self._shared
        if self._local:
            yield self._local[host.name]

    @property
    def has_clients(self) -> bool:
        """True if each host has its own view of a file server's disk."""
        return self._shared.clients is not None

    def environ_of(self, host: str) -> Mapping[str, str]:
        """The variable of a rank's environment that names the disk of its host."""
        return {"SIMDIST_LOCAL_DISK": self._local[host].folder} if self._local else {}

    def leave(self, process: SimProcess) -> None:
        """Flush the files of a process that ends on its own, and notice changes that were not looked at."""
        self._leave(process)
        for disk in self.of(process.host):
            disk.forget_closed()
            disk.scan()

    def close(self) -> None:
        """Close the spill files: no process writes any more."""
        for disk in self:
            disk.spill.close()

    def note_looks(self) -> Looks | None:
        """Note from now on which of the existing files are looked at, until the world ends.

        None where it cannot be noted: the system does not report it, effects take time, so that others could look
        meanwhile, or each host has its own view of the disk.
        """
        if self.has_clients or any(disk.takes_time for disk in self):
            return None
        try:
            looks = Looks((disk.real(path), disk.shown(path)) for disk in self for path in disk.files())
        except OSError:
            return None
        self._watch()
        for disk in self:
            disk.looks = looks
        return looks

    @property
    def busy(self) -> bool:
        """True if no rank causes what is done now."""
        return self._moving or any(disk.busy for disk in self)

    @property
    def changes(self) -> int:
        """How often any of them has changed."""
        return sum(disk.changes for disk in self)

    def hosts_of_ranks(self) -> tuple[str, ...]:
        """The host of each rank that is alive, by rank."""
        return self._shared.hosts_of_ranks()

    def has_older(self, life: int) -> bool:
        """True if a process of an earlier life still runs."""
        residents = [each for host in self._hosts for each in host.residents if isinstance(each, SimProcess)]
        return any(each.running and each.life < life for each in residents)

    def _on_host(self, host: Host) -> None:
        if host.up:
            return
        for disk in self.of(host):
            disk.lose(host)
        self._moving = True
        if self._local and host.disks == "empty":
            self._local[host.name].wipe()
            host.disks = "own"
        if self._local and host.disks == "swapped" and not any(each.up for each in self._hosts):
            self._swap()
        self._moving = False

    def _swap(self) -> None:
        """Give each host the disk of the one before it."""
        disks = [(disk, disk.folder) for disk in self._local.values()]
        for _, folder in disks:
            Path(folder).rename(f"{folder}.away")
        for number, host in enumerate(self._hosts):
            disk, before = disks[number - 1]
            folder = disks[number][1]
            Path(f"{before}.away").rename(folder)
            disk.go_to(host, folder)
            self._local[host.name] = disk
            host.disks = "own"
