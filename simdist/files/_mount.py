"""A disk comes into a world."""

from __future__ import annotations

from collections.abc import Iterable

from simdist.cluster import Host
from simdist.files import _calls, _opening, _torch
from simdist.files._mounted import MountedDisk
from simdist.process import Runtime
from simdist.storage import Mount

__all__ = ["mount"]


def mount(what: Mount, runtime: Runtime, hosts: Iterable[Host], *, seed: int) -> MountedDisk:
    """Put a disk at its folder, for all ranks, until the runtime's patches are undone."""
    disk = MountedDisk(what, runtime.simulation, hosts, seed=seed)
    _calls.install(runtime.patches, disk)
    _opening.install(runtime.patches)
    _torch.install(runtime.patches)
    disk.leave = _opening.flush_all
    return disk
