"""What ranks call: `os.open` and its like, for paths on a simulated disk.

Each replacement asks where the path leads. Elsewhere, and for code on no rank, the original is called.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from simdist.files._mounted import MountedDisk, OpenFile
from simdist.process import Patches, Replacement, SimProcess, current_process

__all__ = ["install", "mounted", "open_file", "present_disk"]

_WRITES = os.O_WRONLY | os.O_RDWR
_disk: MountedDisk | None = None
_Make = Callable[[Any], Any]


def mounted() -> tuple[MountedDisk, SimProcess] | None:
    """The disk of this world and the calling rank; None if there is none or nobody on a rank calls."""
    disk = _disk
    if disk is None or disk.busy:
        return None
    process = current_process()
    return None if process is None else (disk, process)


def present_disk() -> MountedDisk | None:
    """The disk of the world that runs, whoever asks."""
    return _disk


def install(patches: Patches, disk: MountedDisk) -> None:
    """Let ranks find the disk."""
    global _disk
    _disk = disk
    patches.on_undo(_forget)
    patches.redirect(_REPLACEMENTS)
    # By name only: the function objects themselves are somebody else's to redirect, once a rank polls.
    for name, make in _BY_NAME.items():
        patches.wrap(os, name, make)


def _forget() -> None:
    global _disk
    _disk = None


# -- files and folders by path ---------------------------------------------------------------------------------------


def open_file(disk: MountedDisk, process: SimProcess, place: str, flags: int, act: Callable[[], int]) -> int:
    """Open what is at a place on the disk; the descriptor, which `act` gives."""
    real = disk.real(place)
    there = os.path.lexists(real)

    def opened(number: int) -> int:
        inode = disk.find(place)
        if inode is not None and (flags & _WRITES or inode.kind == "folder"):
            disk.open[number] = OpenFile(inode, process, place, bool(flags & os.O_APPEND))
        return number

    if not there and flags & os.O_CREAT:
        disk.find(place)

        def create(_: float) -> int:
            number = act()
            if disk.disk.find(place) is None:
                disk.remember(disk.disk.create(place), real)
            return number

        return opened(disk.change(process, "create", place, create))
    if there and flags & os.O_TRUNC and flags & _WRITES and not flags & os.O_EXCL:
        inode = disk.find(place)
        if inode is not None and inode.kind == "file" and inode.size:
            number: int = disk.resize(process, inode, place, 0, act)
            return opened(number)
    return opened(act())


def _open(original: Any) -> Any:
    @functools.wraps(original)
    def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = mounted()
        place = found[0].place_of(path, dir_fd, follow=True) if found is not None else None
        if found is None or place is None or flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            number: int = original(path, flags, mode, dir_fd=dir_fd)
            return number
        return open_file(*found, place, flags, lambda: original(path, flags, mode, dir_fd=dir_fd))

    return open


def _creating(kind: Any, effect: str) -> _Make:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def create(path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
            found = mounted()
            place = found[0].place_of(path, dir_fd) if found is not None else None
            if found is None or not place:
                return original(path, *args, dir_fd=dir_fd, **kwargs)
            disk, process = found

            def act(_: float) -> None:
                original(path, *args, dir_fd=dir_fd, **kwargs)
                disk.disk.create(place, kind)

            if os.path.lexists(disk.real(place)) or not os.path.isdir(os.path.dirname(disk.real(place))):
                return original(path, *args, dir_fd=dir_fd, **kwargs)  # which raises
            return disk.change(process, effect, place, act)

        return create

    return make


def _symlink(original: Any) -> Any:
    @functools.wraps(original)
    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        found = mounted()
        place = found[0].place_of(dst, dir_fd) if found is not None else None
        if found is None or not place or os.path.lexists(found[0].real(place)):
            original(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        disk, process = found

        def act(_: float) -> None:
            original(src, dst, target_is_directory, dir_fd=dir_fd)
            disk.disk.create(place, "link", target=os.fsdecode(src))

        disk.change(process, "symlink", place, act, to=os.fsdecode(src))

    return symlink


def _removing(effect: str) -> _Make:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            found = mounted()
            place = found[0].place_of(path, dir_fd) if found is not None else None
            inode = found[0].find(place) if found is not None and place else None
            if found is None or not place or inode is None:
                original(path, dir_fd=dir_fd)
                return
            disk, process = found
            if inode.kind == "folder" and (effect == "unlink" or os.listdir(disk.real(place))):
                original(path, dir_fd=dir_fd)  # which raises
                return

            def act(_: float) -> None:
                disk.disk.pin(inode)
                original(path, dir_fd=dir_fd)
                disk.disk.remove(place)

            disk.change(process, effect, place, act)

        return remove

    return make


def _moving(effect: str) -> _Make:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def move(src: Any, dst: Any, **options: Any) -> None:
            found = mounted()
            ends: tuple[str | None, str | None] = (None, None)
            if found is not None:
                ends = (
                    found[0].place_of(src, options.get("src_dir_fd")),
                    found[0].place_of(dst, options.get("dst_dir_fd")),
                )
            place, to = ends
            if found is None or (place is None and to is None):
                original(src, dst, **options)
                return
            disk, process = found
            inode = disk.find(place) if place else None
            if inode is None or not place or not to:
                original(src, dst, **options)  # from or to another disk, or it raises
                return

            def act(_: float) -> None:
                replaced = disk.find(to)
                if replaced is not None:
                    disk.disk.pin(replaced)
                original(src, dst, **options)
                if effect == "link":
                    disk.disk.link(inode, to)
                else:
                    disk.disk.rename(place, to)
                    disk.remember(inode)
                    for opened in disk.open.values():
                        if opened.path == place or opened.path.startswith(f"{place}/"):
                            opened.path = to + opened.path[len(place) :]

            disk.change(process, effect, place, act, to=to)

        return move

    return make


def _truncate(original: Any) -> Any:
    @functools.wraps(original)
    def truncate(path: Any, length: int) -> None:
        found = mounted()
        if found is not None and isinstance(path, int):
            os.ftruncate(path, length)
            return
        place = found[0].place_of(path, follow=True) if found is not None else None
        inode = found[0].find(place) if found is not None and place else None
        if found is None or not place or inode is None or inode.kind != "file":
            original(path, length)
        else:
            found[0].resize(found[1], inode, place, length, lambda: original(path, length))

    return truncate


# -- files by descriptor ---------------------------------------------------------------------------------------------


def _opened(descriptor: Any) -> tuple[MountedDisk, OpenFile] | None:
    found = mounted()
    if found is None:
        return None
    number = descriptor if isinstance(descriptor, int) else None
    if number is None and hasattr(descriptor, "fileno"):
        number = descriptor.fileno()
    opened = None if number is None else found[0].open.get(number)
    return None if opened is None else (found[0], opened)


def _ftruncate(original: Any) -> Any:
    @functools.wraps(original)
    def ftruncate(fd: Any, length: int) -> None:
        found = _opened(fd)
        if found is None:
            original(fd, length)
        else:
            disk, opened = found
            disk.resize(opened.process, opened.inode, opened.path, length, lambda: original(fd, length))

    return ftruncate


def _syncing(*, data_only: bool) -> _Make:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def sync(fd: Any) -> None:
            found = _opened(fd)
            if found is None:
                original(fd)
            else:
                disk, opened = found
                disk.sync(opened.process, opened.inode, opened.path, data_only=data_only, act=lambda: None)

        return sync

    return make


def _sync(original: Any) -> Any:
    @functools.wraps(original)
    def sync() -> None:
        found = mounted()
        if found is None:
            original()
            return
        disk, process = found

        def act(_: float) -> None:
            disk.scan()
            disk.disk.sync()

        disk.change(process, "sync", "", act)

    return sync


def _close(original: Any) -> Any:
    @functools.wraps(original)
    def close(fd: int) -> None:
        found = _opened(fd)
        if found is not None:
            found[0].close(fd)
        original(fd)

    return close


def _write(original: Any) -> Any:
    @functools.wraps(original)
    def write(fd: int, data: Any) -> int:
        found = _opened(fd)
        if found is None:
            count: int = original(fd, data)
            return count
        disk, opened = found
        offset = opened.inode.size if opened.appends else os.lseek(fd, 0, os.SEEK_CUR)
        return disk.write(opened, offset, bytes(data), lambda part: original(fd, part))

    return write


def _writev(original: Any) -> Any:
    @functools.wraps(original)
    def writev(fd: int, buffers: Any) -> int:
        if _opened(fd) is None:
            count: int = original(fd, buffers)
            return count
        return os.write(fd, b"".join(bytes(each) for each in buffers))

    return writev


def _pwrite(original: Any) -> Any:
    @functools.wraps(original)
    def pwrite(fd: int, data: Any, offset: int) -> int:
        found = _opened(fd)
        if found is None:
            count: int = original(fd, data, offset)
            return count
        return found[0].write(found[1], offset, bytes(data), lambda part: original(fd, part, offset))

    return pwrite


def _sendfile(original: Any) -> Any:
    @functools.wraps(original)
    def sendfile(out_fd: int, in_fd: int, offset: Any, count: int, *args: Any, **kwargs: Any) -> int:
        if _opened(out_fd) is None:
            sent: int = original(out_fd, in_fd, offset, count, *args, **kwargs)
            return sent
        at = os.lseek(in_fd, 0, os.SEEK_CUR) if offset is None else offset
        return os.write(out_fd, os.pread(in_fd, count, at))

    return sendfile


def _copy_file_range(original: Any) -> Any:
    @functools.wraps(original)
    def copy(src: int, dst: int, count: int, offset_src: Any = None, offset_dst: Any = None) -> int:
        if _opened(dst) is None:
            copied: int = original(src, dst, count, offset_src, offset_dst)
            return copied
        data = os.read(src, count) if offset_src is None else os.pread(src, count, offset_src)
        return os.write(dst, data) if offset_dst is None else os.pwrite(dst, data, offset_dst)

    return copy


def _dup(original: Any) -> Any:
    @functools.wraps(original)
    def dup(fd: int, *args: Any, **kwargs: Any) -> int:
        number: int = original(fd, *args, **kwargs)
        found = _opened(fd)
        if found is not None:
            found[0].open[number] = found[1]
        return number

    return dup


# -- listings --------------------------------------------------------------------------------------------------------


class _Entries:
    """What `os.scandir` gives, by name: the order of real folders differs from one machine to the next."""

    def __init__(self, found: Any) -> None:
        with found:
            self._entries: Iterator[Any] = iter(sorted(found, key=lambda entry: entry.name))

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give nothing more."""
        self._entries = iter(())


def _is_here(path: Any) -> bool:
    found = mounted()
    if found is None:
        return False
    if isinstance(path, int):
        return path in found[0].open
    return found[0].place_of(path, follow=True) is not None


def _scandir(original: Any) -> Any:
    @functools.wraps(original)
    def scandir(path: Any = ".") -> Any:
        return _Entries(original(path)) if _is_here(path) else original(path)

    return scandir


def _listdir(original: Any) -> Any:
    @functools.wraps(original)
    def listdir(path: Any = ".") -> Any:
        return sorted(original(path)) if _is_here(path) else original(path)

    return listdir


_BY_NAME: dict[str, _Make] = {
    name: make for name, make in {"write": _write, "writev": _writev, "close": _close}.items() if hasattr(os, name)
}
_REPLACEMENTS = tuple(
    Replacement(os, name, make)
    for name, make in (
        ("open", _open),
        ("mkdir", _creating("folder", "mkdir")),
        ("symlink", _symlink),
        ("unlink", _removing("unlink")),
        ("remove", _removing("unlink")),
        ("rmdir", _removing("rmdir")),
        ("rename", _moving("rename")),
        ("replace", _moving("rename")),
        ("link", _moving("link")),
        ("truncate", _truncate),
        ("ftruncate", _ftruncate),
        ("fsync", _syncing(data_only=False)),
        ("fdatasync", _syncing(data_only=True)),
        ("sync", _sync),
        ("pwrite", _pwrite),
        ("sendfile", _sendfile),
        ("copy_file_range", _copy_file_range),
        ("dup", _dup),
        ("scandir", _scandir),
        ("listdir", _listdir),
    )
    if hasattr(os, name)
)
