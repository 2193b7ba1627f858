"""A disk that loses bits of its files."""

from __future__ import annotations

import errno
import fnmatch
import os

from simdist.files._present import present_disks
from simdist.process import current_process

__all__ = ["flip_bit"]


def flip_bit(pattern: str, byte: int | None, bit: int) -> None:
    """Flip a bit of the last matching file that the running rank sees; `byte` None is the middle one.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it has no such byte.
    """
    disks, process = present_disks(), current_process()
    assert disks is not None
    assert process is not None
    for disk in disks.of(process.host):
        paths = [path for path, kind, _ in disk.contents() if kind == "file" and fnmatch.fnmatch(path, pattern)]
        if paths:
            disk.flip(max(paths), byte, bit)
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), pattern)
