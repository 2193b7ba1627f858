"""The disks of a world."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simdist.cluster import Host
from simdist.files._mounted import MountedDisk
from simdist.process import SimProcess

__all__ = ["Disks"]


class Disks:
    """The disk that all ranks see."""

    def __init__(self, shared: MountedDisk, leave: Callable[[SimProcess], None]) -> None:
        self._shared = shared
        self.leave = leave  # called by a process that ends by itself

    def __iter__(self) -> Iterator[MountedDisk]:
        yield self._shared

    def of(self, host: Host) -> Iterator[MountedDisk]:
        """Those that the ranks of a host see."""
        yield self._shared

    @property
    def busy(self) -> bool:
        """True if what is done now is no rank's doing."""
        return any(disk.busy for disk in self)

    @property
    def changes(self) -> int:
        """How often any of them has changed."""
        return sum(disk.changes for disk in self)

    def hosts_of_ranks(self) -> tuple[str, ...]:
        """The host of each rank that is alive, by rank."""
        return self._shared.hosts_of_ranks()
