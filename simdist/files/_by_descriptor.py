"""Functions that ranks call with a descriptor: `os.write`, `os.fsync` and the like; and `os.sync`.

Each replacement checks where the descriptor leads. Elsewhere, and for code on no rank, it calls the original.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from simdist.files._present import Make, opened, present_disks, reached
from simdist.process import current_process

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike, ReadableBuffer

__all__ = ["BY_DESCRIPTOR", "BY_NAME", "OF_FCNTL"]
_At = int | None  # an offset, or None for the file's position


def _ftruncate(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def ftruncate(fd: object, length: int) -> None:
        found = reached(fd)
        if found is None:
            original(fd, length)
        else:
            disk, file = found
            disk.resize(file.process, file.inode, file.path, length, lambda: original(fd, length))

    return ftruncate


def _syncing(*, data_only: bool) -> Make:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def sync(fd: object) -> None:
            found = reached(fd)
            if found is None:
                original(fd)
            else:
                disk, file = found
                disk.sync(file.process, file.inode, file.path, data_only=data_only, act=lambda: None)

        return sync

    return make


def _sync(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def sync() -> None:
        disks, process = present_disks(), current_process()
        if disks is None or process is None:
            original()
            return
        for disk in disks.of(process.host):
            disk.sync_all(process)

    return sync


def _close(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def close(fd: int) -> None:
        found = opened(fd)
        if found is not None:
            found[0].close(fd)
        original(fd)

    return close


def _write(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def write(fd: int, data: ReadableBuffer) -> int:
        found = reached(fd)
        if found is None:
            return original(fd, data)
        disk, file = found
        offset = file.inode.size if file.appends else os.lseek(fd, 0, os.SEEK_CUR)
        content = bytes(data)
        # If all of it is written, the object itself is passed on: O_DIRECT needs aligned memory.
        return disk.write(file, offset, content, lambda part: original(fd, data if part is content else part))

    return write


def _writev(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def writev(fd: int, buffers: Iterable[ReadableBuffer]) -> int:
        if reached(fd) is None:
            return original(fd, buffers)
        return os.write(fd, b"".join(bytes(each) for each in buffers))

    return writev


def _pwrite(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def pwrite(fd: int, data: ReadableBuffer, offset: int) -> int:
        found = reached(fd)
        if found is None:
            return original(fd, data, offset)
        content = bytes(data)
        disk, file = found
        return disk.write(file, offset, content, lambda part: original(fd, data if part is content else part, offset))

    return pwrite


def _pwritev(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def pwritev(fd: int, buffers: Iterable[ReadableBuffer], offset: int, flags: int = 0) -> int:
        found = reached(fd)
        if found is None:
            return original(fd, buffers, offset, flags)
        disk, file = found
        content = b"".join(bytes(each) for each in buffers)
        at = os.lseek(fd, 0, os.SEEK_CUR) if offset == -1 else offset
        if file.appends or flags & getattr(os, "RWF_APPEND", 0):
            at = file.inode.size
        syncs: Literal["", "data", "all"] = "data" if flags & getattr(os, "RWF_DSYNC", 0) else ""
        if flags & getattr(os, "RWF_SYNC", 0):
            syncs = "all"
        return disk.write(file, at, content, lambda part: original(fd, [part], offset, flags), syncs=syncs)

    return pwritev


def _posix_fallocate(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def posix_fallocate(fd: int, offset: int, length: int) -> None:
        found = reached(fd)
        if found is None or offset < 0 or length <= 0 or offset + length <= found[1].inode.size:
            original(fd, offset, length)  # changes neither bytes nor size
        else:
            disk, file = found
            whole = file.process, file.inode, file.path, offset + length, lambda: original(fd, offset, length)
            disk.resize(*whole, allocates=True)

    return posix_fallocate


def _splice(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def splice(src: int, dst: int, count: int, offset_src: _At = None, offset_dst: _At = None, flags: int = 0) -> int:
        if reached(dst) is None:
            return original(src, dst, count, offset_src, offset_dst, flags)
        data = os.read(src, count) if offset_src is None else os.pread(src, count, offset_src)
        return os.write(dst, data) if offset_dst is None else os.pwrite(dst, data, offset_dst)

    return splice


def _sendfile(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def sendfile(out_fd: int, in_fd: int, offset: int | None, count: int, *args: object, **kwargs: object) -> int:
        if reached(out_fd) is None:
            return original(out_fd, in_fd, offset, count, *args, **kwargs)
        at = os.lseek(in_fd, 0, os.SEEK_CUR) if offset is None else offset
        return os.write(out_fd, os.pread(in_fd, count, at))

    return sendfile


def _copy_file_range(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def copy(src: int, dst: int, count: int, offset_src: _At = None, offset_dst: _At = None) -> int:
        if reached(dst) is None:
            return original(src, dst, count, offset_src, offset_dst)
        data = os.read(src, count) if offset_src is None else os.pread(src, count, offset_src)
        return os.write(dst, data) if offset_dst is None else os.pwrite(dst, data, offset_dst)

    return copy


def _dup(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def dup(fd: int, *args: object, **kwargs: object) -> int:
        number = original(fd, *args, **kwargs)
        found = opened(fd)
        if found is not None:
            found[0].open[number] = found[1]
        return number

    return dup


_CLONES = (0x40049409, 0x4020940D)  # FICLONE and FICLONERANGE of linux/fs.h


def _ioctl(original: Callable[..., object]) -> Callable[..., object]:
    """Refuse to share blocks between files; callers such as `Path.copy` of Python 3.14 then copy."""

    @functools.wraps(original)
    def ioctl(fd: FileDescriptorLike, request: int, *args: object) -> object:
        if request in _CLONES and reached(fd) is not None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return original(fd, request, *args)

    return ioctl


BY_DESCRIPTOR: tuple[tuple[str, Make], ...] = (
    ("ftruncate", _ftruncate),
    ("fsync", _syncing(data_only=False)),
    ("fdatasync", _syncing(data_only=True)),
    ("sync", _sync),
    ("pwrite", _pwrite),
    ("pwritev", _pwritev),
    ("posix_fallocate", _posix_fallocate),
    ("splice", _splice),
    ("sendfile", _sendfile),
    ("copy_file_range", _copy_file_range),
    ("dup", _dup),
)
"""The replacements of functions of `os` that take a descriptor, by name."""

# By name only: another component redirects the function objects themselves, once a rank polls.
BY_NAME: tuple[tuple[str, Make], ...] = (("write", _write), ("writev", _writev), ("close", _close))
"""Further replacements, only for code that looks the functions up in `os`."""

OF_FCNTL: tuple[tuple[str, Make], ...] = (("ioctl", _ioctl),)
"""The replacements of functions of `fcntl`."""
