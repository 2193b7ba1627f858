"""The description of a disk: where ranks see it, its rules, and its costs."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Mount"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A disk at a folder of the real file system, the same for the ranks of all hosts; optionally more for each.

    The content of the folder when the run begins is durable. In a world of one host it is that host's disk. With
    several it is a file server's, which loses power when all hosts do; a host that goes down alone loses what it had
    written to files that were not closed.

    With `local` each host also has a disk of its own, by the rules of `local_profile`: host "host0" has the one in the
    folder `local`/host0. Its ranks find the path in the environment, as SIMDIST_LOCAL_DISK.

    `profile` names the rules, one of `PROFILES`. Each effect takes `latency_ns`, and a sync also the time of the
    waiting bytes at `bandwidth` bytes per second (None: no time).

    With the profile "nfs" another host sees writes to a file once it is closed, or synced. With `names_late_ns` a host
    that has looked for a name in vain, or has read a folder, does not see for that time what another one puts there
    (Linux: up to 60 s).

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
