"""The times of files after a crash of their host.

A file system keeps times with the file. A file that a crash leaves as it last was on the disk has the times from before
its first change that was not synced; every other file has the last times that a process saw. Programs that ranks start
see the times of the real files, which are those at which the crash was simulated.

Doubt: a folder keeps the time of the last change of its names, even if the crash takes that change back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from simdist.process import FileTimes, KeptTimes, original
from simdist.storage import Disk, FileState, Image, Inode

__all__ = ["OldTimes"]


class OldTimes:
    """The times of a disk's files, by number."""

    def __init__(self, times: FileTimes) -> None:
        self._times = times
        self._durable: dict[int, KeptTimes | None] = {}  # from before the first change that was not synced
        self._last: dict[int, KeptTimes | None] = {}  # from before a file lost a name

    def keep(self, inode: Inode, real: str) -> None:
        """Keep the times of a file that is about to change, or to lose a name."""
        try:
            kept = self._times.kept(original(os.lstat)(real))
        except OSError:
            return
        self._last[inode.number] = kept
        if not inode.changes:
            self._durable[inode.number] = kept

    def of(self, inode: Inode, real: str, *, is_old: bool) -> KeptTimes | None:
        """The times of an existing file; if it is as it was when it was last synced, those from then."""
        if is_old and inode.changes and inode.number in self._durable:
            return self._durable[inode.number]
        try:
            return self._times.kept(original(os.lstat)(real))
        except OSError:
            return self._last.get(inode.number)

    def left(self, disk: Disk, before: Image, after: Image, folder: str) -> dict[str, KeptTimes | None]:
        """The times of the files that a crash makes anew, by real path; called before they are made."""
        had = before.paths
        names: dict[int, str] = {}
        for path, state in before.nodes:
            names.setdefault(disk.inode_of(state).number, path)
        found = {}
        for path, state in after.nodes:
            if had.get(path) != state:
                inode = disk.inode_of(state)
                is_old = isinstance(state, FileState) and disk.content(state) == inode.base.data
                name = names.get(inode.number)
                if name is None and not (is_old and inode.changes):
                    times = self._last.get(inode.number)
                else:
                    times = self.of(inode, os.path.join(folder, name or path), is_old=is_old)
                found[os.path.join(folder, path)] = times
        return found

    def put_back(self, times: Mapping[str, KeptTimes | None]) -> None:
        """Set the times of the files, which exist now."""
        for real, kept in times.items():
            self._times.assign(original(os.lstat)(real), kept)
        self._durable.clear()
        self._last.clear()
