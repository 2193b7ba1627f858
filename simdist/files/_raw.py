"""Python's interfaces below `open`: `io.FileIO(path)`, and mappings that are flushed.

Both open their files in C, so that a file's creation is "unseen". A write through a FileIO is an effect like any other.
Stores to a mapping are noticed when it is flushed, which makes its file durable, as `msync` does. Stores to a mapping
that is never flushed count as durable, too, if the file was so before: when they happened is not known.
"""

from __future__ import annotations

import functools
import io
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

from simdist.files._mounted import MountedDisk, OpenFile
from simdist.files._opening import DiskFile
from simdist.files._present import opened, present_disks, spot
from simdist.inside.python import address_of_buffer, mapped_file
from simdist.process import Patches, current_process

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Redirect these interfaces to the disk, too."""
    patches.wrap_all_in_type(io.FileIO, {"write": _write, "close": _close})
    patches.wrap_all_in_type(mmap.mmap, {"flush": _flush})


def _write(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def write(self: io.FileIO, data: ReadableBuffer, /) -> int:
        if isinstance(self, DiskFile) or current_process() is None:
            return original(self, data)
        found = opened(self) or _register(self)
        if found is None:
            return original(self, data)
        disk, file = found
        content = bytes(data)
        offset = file.inode.size if file.appends else self.tell()
        return disk.write(file, offset, content, lambda part: original(self, part))

    return write


def _register(file: io.FileIO) -> tuple[MountedDisk, OpenFile] | None:
    """Register a file of this kind when it is first written to."""
    place = None if isinstance(file.name, int) else spot(file.name, follow=True)
    inode = None if place is None else place.disk.find(place.place)
    if place is None or inode is None:
        return None
    made = place.disk.open[file.fileno()] = OpenFile(inode, place.process, place.place, "a" in file.mode)
    return place.disk, made


def _close(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def close(self: io.FileIO) -> None:
        if not isinstance(self, DiskFile) and not self.closed and current_process() is not None and self.closefd:
            found = opened(self)
            if found is not None:
                found[0].close(self.fileno())
        original(self)
        disks = present_disks()
        if disks is not None and disks.has_clients and not disks.busy and current_process() is not None:
            for disk in disks:
                disk.forget_closed()

    return close


def _flush(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def flush(self: mmap.mmap, *args: object, **kwargs: object) -> object:
        done = original(self, *args, **kwargs)
        disks, process = present_disks(), current_process()
        if disks is not None and process is not None and not disks.busy:
            at = address_of_buffer(self)
            mapped = None if at is None else mapped_file(at)
            for disk in disks.of(process.host):
                if mapped is None:
                    disk.sync_changed(process)
                elif disk.sync_mapped(process, mapped.device, mapped.number):
                    break
        return done

    return flush
