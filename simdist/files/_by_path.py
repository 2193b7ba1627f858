"""Functions that ranks call with a path: `os.open`, `os.mkdir`, `os.rename` and the like.

Each replacement checks where the path leads. Elsewhere, and for code on no rank, it calls the original.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

from simdist.files._mounted import OpenFile
from simdist.files._present import Make, Spot, asks, is_there, reached, spot
from simdist.process import current_process

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath as Path

__all__ = ["BY_PATH", "LOOKS", "is_hidden", "open_file", "open_to_read", "open_unnamed"]

_WRITES = os.O_WRONLY | os.O_RDWR
_TMPFILE = getattr(os, "O_TMPFILE", -1)
_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self|[0-9]+)/fd/([0-9]+)|/dev/fd/([0-9]+)")
_Reduced = tuple[type[os.stat_result], tuple[tuple[int, ...], dict[str, Any]]]


def open_file(found: Spot, flags: int, act: Callable[[], int]) -> int:
    """Open the file at a place on a disk; returns the descriptor that `act` returns."""
    disk, process, place, real = found.disk, found.process, found.place, found.real
    there = is_there(real)

    def opened(number: int | None) -> int:
        assert number is not None  # no verdict drops it
        inode = disk.find(place)
        if inode is not None and (flags & _WRITES or inode.kind == "folder"):
            disk.open[number] = OpenFile.with_flags(inode, process, place, flags)
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
            return opened(disk.resize(process, inode, place, 0, act))
    return opened(act())


def open_unnamed(found: Spot, flags: int, act: Callable[[], int]) -> int:
    """Open a file without a name in a folder on a disk (O_TMPFILE); returns the descriptor that `act` returns."""
    disk, process, place = found.disk, found.process, found.place

    def create(_: float) -> int:
        number = act()
        inode = disk.disk.create_unnamed()
        path = f"{place}/#{inode.number}" if place else f"#{inode.number}"  # as Linux shows it
        disk.open[number] = OpenFile.with_flags(inode, process, path, flags)
        disk.remember(inode)
        return number

    number = disk.change(process, "create", place, create)
    assert number is not None
    return number


def open_to_read(found: Spot, flags: int, act: Callable[[], int], name: object) -> int:
    """Open what the rank's host sees at a place, which the rank calls `name`; returns the descriptor."""
    clients = found.disk.clients
    if clients is None:
        return open_file(found, flags, act)
    if is_hidden(found):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    inode = found.disk.find(found.place)
    served = None if inode is None else clients.served(found.process, inode)
    return open_file(found, flags, act) if served is None else _holding(served)


def is_hidden(found: Spot) -> bool:
    """True if the rank's host does not see the name there yet."""
    clients = found.disk.clients
    return clients is not None and clients.hides(found.process, found.place, there=is_there(found.real))


def _holding(data: bytes) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


def _open(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def open(path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = spot(path, dir_fd, follow=True)
        if found is not None and not flags & (_WRITES | os.O_CREAT):
            return open_to_read(found, flags, lambda: original(path, flags, mode, dir_fd=dir_fd), path)
        if found is None:
            return original(path, flags, mode, dir_fd=dir_fd)
        if flags & _TMPFILE == _TMPFILE:
            return open_unnamed(found, flags, lambda: original(path, flags, mode, dir_fd=dir_fd))
        return open_file(found, flags, lambda: original(path, flags, mode, dir_fd=dir_fd))

    return open


def _creating(kind: Literal["folder"], effect: str) -> Make:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def create(path: Path, *args: object, dir_fd: int | None = None, **kwargs: object) -> object:
            found = spot(path, dir_fd)
            if found is None or not found.place:
                return original(path, *args, dir_fd=dir_fd, **kwargs)
            disk, place = found.disk, found.place

            def act(_: float) -> None:
                original(path, *args, dir_fd=dir_fd, **kwargs)
                disk.remember(disk.disk.create(place, kind), found.real)

            if is_there(found.real) or not is_there(os.path.dirname(found.real)):
                return original(path, *args, dir_fd=dir_fd, **kwargs)  # which raises
            return disk.change(found.process, effect, place, act)

        return create

    return make


def _symlink(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def symlink(src: Path, dst: Path, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        found = spot(dst, dir_fd)
        if found is None or not found.place or is_there(found.real):
            original(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        disk, place = found.disk, found.place

        def act(_: float) -> None:
            original(src, dst, target_is_directory, dir_fd=dir_fd)
            disk.disk.create(place, "link", target=os.fsdecode(src))

        disk.change(found.process, "symlink", place, act, to=os.fsdecode(src))

    return symlink


def _removing(effect: str) -> Make:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def remove(path: Path, *, dir_fd: int | None = None) -> None:
            found = spot(path, dir_fd)
            inode = found.disk.find(found.place) if found is not None and found.place else None
            if found is None or inode is None:
                original(path, dir_fd=dir_fd)
                return
            disk, place = found.disk, found.place
            if inode.kind == "folder" and (effect == "unlink" or os.listdir(found.real)):
                original(path, dir_fd=dir_fd)  # which raises
                return

            disk.forget_closed()
            if effect == "unlink" and disk.keep_open(found.process, place, inode):
                return

            def act(_: float) -> None:
                disk.pin(inode, place)
                original(path, dir_fd=dir_fd)
                disk.disk.remove(place)

            disk.change(found.process, effect, place, act)

        return remove

    return make


def _moving(effect: str) -> Make:
    def make(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def move(src: Path, dst: Path, **options: int | None) -> None:
            source, target = spot(src, options.get("src_dir_fd")), spot(dst, options.get("dst_dir_fd"))
            if (
                effect == "link"
                and source is None
                and target is not None
                and _link_of_descriptor(original, src, dst, target, options)
            ):
                return
            if source is None and target is None:
                original(src, dst, **options)
                return
            if source is None or target is None or source.disk is not target.disk:
                os.lstat(src, dir_fd=options.get("src_dir_fd"))
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), src, None, dst)
            disk, place, to = source.disk, source.place, target.place
            inode = disk.find(place) if place else None
            if inode is None or not to:
                original(src, dst, **options)  # which raises
                return
            replaced = disk.find(to) if effect == "rename" and disk.clients is not None else None
            if replaced is not None and replaced is not inode:
                disk.keep_open(source.process, to, replaced)

            def act(_: float) -> None:
                replaced = disk.find(to)
                if replaced is not None:
                    disk.pin(replaced, to)
                original(src, dst, **options)
                if effect == "link":
                    disk.disk.link(inode, to)
                else:
                    disk.disk.rename(place, to)
                    disk.remember(inode)
                    for opened in disk.open.values():
                        if opened.path == place or opened.path.startswith(f"{place}/"):
                            opened.path = to + opened.path[len(place) :]

            disk.change(source.process, effect, place, act, to=to)

        return move

    return make


def _link_of_descriptor(
    original: Callable[..., object],
    src: Path,
    dst: Path,
    target: Spot,
    options: dict[str, int | None],
) -> bool:
    """Name a file on the disk by one of its descriptors (linkat with AT_SYMLINK_FOLLOW); False if `src` is none."""
    matched = _DESCRIPTOR.fullmatch(os.fsdecode(src)) if isinstance(src, (str, bytes, os.PathLike)) else None
    found = None if matched is None else reached(int(matched[1] or matched[2]))
    if found is None or found[0] is not target.disk or not target.place:
        return False
    disk, file = found

    def act(_: float) -> None:
        original(src, dst, **options)
        disk.disk.link(file.inode, target.place)
        for opened in disk.open.values():
            if opened.inode is file.inode and disk.disk.find(opened.path) is not file.inode:
                opened.path = target.place

    disk.change(target.process, "link", file.path, act, to=target.place)
    return True


def _truncate(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def truncate(path: Path | int, length: int) -> None:
        if isinstance(path, int):
            os.ftruncate(path, length)
            return
        found = spot(path, follow=True)
        inode = found.disk.find(found.place) if found is not None and found.place else None
        if found is None or inode is None or inode.kind != "file":
            original(path, length)
        else:
            found.disk.resize(found.process, inode, found.place, length, lambda: original(path, length))

    return truncate


def _utime(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def utime(path: Path | int, *args: object, **kwargs: Any) -> None:
        found = None if isinstance(path, int) else spot(path, kwargs.get("dir_fd"), follow=True)
        inode = found.disk.find(found.place) if found is not None and found.place else None
        original(path, *args, **kwargs)
        if found is not None and inode is not None:
            found.disk.remember(inode, found.real)  # a new time does not change the content

    return utime


def _looking(original: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    @functools.wraps(original)
    def look(path: Path | int, *args: object, **kwargs: Any) -> os.stat_result:
        if isinstance(path, int) or (process := current_process()) is None or asks(process):
            return original(path, *args, **kwargs)
        found = spot(path, kwargs.get("dir_fd"), follow=kwargs.get("follow_symlinks", True))
        if found is not None and is_hidden(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if found is not None and found.disk.looks is not None and found.place:
            found.disk.looks.at(found.real)
        said = original(path, *args, **kwargs)
        return said if found is None else _served(found, said)

    return look


def _served(found: Spot, said: os.stat_result) -> os.stat_result:
    """Correct the stat result of a file that another host writes: the size is the one that the server knows."""
    clients = found.disk.clients
    inode = found.disk.find(found.place) if clients is not None and found.place else None
    data = None if clients is None or inode is None else clients.served(found.process, inode)
    if data is None:
        return said
    kind, (plain, named) = cast("_Reduced", said.__reduce__())  # Python 3.13 takes no field twice
    return kind((*plain[:6], len(data), *plain[7:]), named)


def _access(original: Callable[..., object]) -> Callable[..., bool]:
    @functools.wraps(original)
    def access(path: Path | int, *args: object, **kwargs: Any) -> bool:
        found = None if isinstance(path, int) else spot(path, kwargs.get("dir_fd"), follow=True)
        return not (found is not None and is_hidden(found)) and bool(original(path, *args, **kwargs))

    return access


LOOKS: tuple[tuple[str, Make], ...] = (("stat", _looking), ("lstat", _looking), ("access", _access))
"""The replacements of functions of `os` that look at a path. They are needed if each host sees the disk in its own
way, or if looks are recorded."""

BY_PATH: tuple[tuple[str, Make], ...] = (
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
    ("utime", _utime),
)
"""The replacements of functions of `os` that take a path, by name."""
