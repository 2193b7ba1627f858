"""Mounting a disk in a world."""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Iterable

from simdist.cluster import Host
from simdist.files import _by_c_code, _opening, _present, _raw, _torch
from simdist.files._by_descriptor import BY_DESCRIPTOR, BY_NAME, OF_FCNTL
from simdist.files._by_path import BY_PATH, LOOKS
from simdist.files._disks import Disks
from simdist.files._listings import LISTINGS
from simdist.process import FileTimes, Replacement, Runtime
from simdist.storage import Mount

__all__ = ["mount"]

_REPLACEMENTS = tuple(
    Replacement(os, name, make) for name, make in (*BY_PATH, *BY_DESCRIPTOR, *LISTINGS) if hasattr(os, name)
) + tuple(Replacement(fcntl, name, make) for name, make in OF_FCNTL)
_LOOKS = tuple(Replacement(os, name, make) for name, make in LOOKS)


def mount(what: Mount, runtime: Runtime, hosts: Iterable[Host], *, seed: int, jitter: float = 0.0) -> Disks:
    """Mount a disk at its folder, for all ranks, and the hosts' own, until the runtime's patches are undone.

    `jitter` is how much effects vary, as a share of their time.
    """

    @functools.cache
    def watch() -> None:
        runtime.patches.redirect(_LOOKS)

    times = runtime.extras[FileTimes]
    disks = Disks(what, runtime.simulation, hosts, times, seed=seed, leave=_opening.flush_all, watch=watch)
    for disk in disks:
        disk.jitter = jitter
    _present.put(disks)
    runtime.patches.on_undo(_present.forget)
    runtime.patches.on_undo(disks.close)
    runtime.patches.redirect(_REPLACEMENTS)
    if disks.has_clients:
        watch()
    for name, make in BY_NAME:
        if hasattr(os, name):
            runtime.patches.wrap(os, name, make)
    _opening.install(runtime.patches)
    _raw.install(runtime.patches)
    _torch.install(runtime.patches)
    _by_c_code.install(runtime.patches)
    return disks
