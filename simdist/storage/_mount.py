"""A disk in words: where ranks see it, by whose rules it keeps things, and what it costs."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Mount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A disk at a folder of the real file system, the same for the ranks of all hosts; perhaps with one for each host.

    What is in the folder when the run begins is durable. In a world of one host it is that host's disk. With several it
    is a file server's, which loses power when all hosts do; a host that goes down alone loses what it had written to
    files that were not closed.

    With `local` each host has a disk of its own beside it, by the rules of `local_profile`: host "host0" that in the
    folder `local`/host0. Its ranks find the path in the environment, as SIMDIST_LOCAL_DISK.

    `profile` names the rules, one of `PROFILES`. Each effect takes `latency_ns`, and a sync as long as the bytes that
    wait need at `bandwidth` bytes per second (None: no time).

    With the profile "nfs" another host sees what was written to a file once it is closed, or synced. With
    `names_late_ns` a host that has looked for a name in vain, or has read a folder, goes on for so long without what
    another one puts there (Linux: up to 60 s).

    Example:
        >>> Mount(folder="/tmp/scratch", profile="xfs", bandwidth=2e9).profile
        'xfs'
    """

    folder: str | os.PathLike[str]
    profile: str = "ext4"
    latency_ns: int = 0
    bandwidth: float | None = None
    local: str | os.PathLike[str] | None = None
    local_profile: str = "ext4"
    names_late_ns: int = 0
