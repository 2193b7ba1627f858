"""System calls of libraries' own C code for its files: SQLite, LMDB and others that sync for themselves.

The calls of libraries that can sync are redirected here, and those that ranks look up by `ctypes`. When they sync, the
changes of their own and of others are taken in first, then the file is durable, as if Python code had called
`os.fsync`. Their `open`, `rename` and `unlink` are noticed so that the previous durable content is known. These calls
are recorded and not announced: C code cannot be stopped in the middle, so that no fault strikes between two of them,
only before and after the whole. Writes are found by their result, except for files that are open with O_SYNC or
O_DSYNC, where each is a sync.

Only calls on a rank's own threads count. `reaches_c_code` returns whether all this works here.

Invariant: while no world with a disk lives, the slots hold what they held before.

Doubt: a thread of a library that opens or syncs a file waits for the GIL in here. A library that waits for its thread
while it keeps the GIL would wait forever. No library is known that does.
"""

from __future__ import annotations

import _imp
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from simdist.files._mounted import MountedDisk, OpenFile
from simdist.files._present import Spot, flags_of, present_disks, reached, spot
from simdist.inside.python import ForeignLibrary, mapped_file
from simdist.inside.system import (
    LedFunction,
    Slot,
    c_library,
    error_number,
    is_address_of,
    put_into,
    set_error_number,
    slots_of,
)
from simdist.process import Patches, current_process

__all__ = ["install", "reaches_c_code"]

# Functions of the C library: the type of the result, then those of the arguments. The last ones may be left out.
_SYNCS = {
    "fsync": "int int",
    "fdatasync": "int int",
    "syncfs": "int int",
    "sync": "nothing",
    "msync": "int place size int",
}
_NAMES = {
    "open": "int name int unsigned",
    "open64": "int name int unsigned",
    "openat": "int int name int unsigned",
    "openat64": "int int name int unsigned",
    "rename": "int name name",
    "renameat": "int int name int name",
    "renameat2": "int int name int name unsigned",
    "unlink": "int name",
}
_WRITES = {
    "write": "long int place size",
    "pwrite": "long int place size long",
    "pwrite64": "long int place size long",
    "writev": "long int place int",
    "pwritev": "long int place int long",
    "pwritev64": "long int place int long",
}
_ALL = _SYNCS | _NAMES | _WRITES
_MS_SYNC = 4
_SYNCED_WRITES = os.O_SYNC | getattr(os, "O_DSYNC", 0) if hasattr(os, "O_SYNC") else 0
# Python's own calls are handled as Python's, and torch never syncs.
_LEFT_OUT = ("libpython", "python", "mmap.", "libtorch", "libc10", "libc.so", "ld-linux", "libpthread")

_slots: dict[Slot, int] = {}  # redirected slots, and their former content
_synced: dict[int, tuple[MountedDisk, int]] = {}  # open with O_SYNC or O_DSYNC, by descriptor: the inode's number


def install(patches: Patches) -> None:
    """Notice these calls, also of libraries that are loaded later."""
    patches.on_undo(_undo)
    if not reaches_c_code():
        return
    _reach()
    patches.wrap(_imp, "create_dynamic", _loading)
    patches.wrap(sys.modules[ForeignLibrary.__module__], "_dlopen", _loading)
    patches.wrap(ForeignLibrary, "__getitem__", _looked_up)


@functools.cache
def reaches_c_code() -> bool:
    """True if calls of C code can be noticed on this machine."""
    return bool(slots_of(("fsync",), without=("libtorch",))) and set(_SYNCS) <= _known()


_Real = Callable[..., int]


@functools.cache
def _known() -> frozenset[str]:
    """The functions that the C library has: not all versions have the same."""
    return frozenset(name for name in _ALL if hasattr(c_library(), name))


def _loading(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def load(*args: object, **kwargs: object) -> object:
        loaded = original(*args, **kwargs)
        if present_disks() is not None:
            _reach()
        return loaded

    return load


def _undo() -> None:
    there = set(slots_of(tuple(_ALL), without=_LEFT_OUT)) if _slots else set()
    for slot, held in _slots.items():
        if slot in there:  # its library may have been unloaded
            put_into((slot,), {slot.name: held})
    _slots.clear()
    _synced.clear()


def _reach(*, writes: bool = False) -> None:
    """Redirect the calls of every library that can sync."""
    slots = slots_of(tuple(_ALL), without=_LEFT_OUT)
    able = {slot.library for slot in slots if slot.name in _SYNCS and slot.library}
    wanted = _known().difference(() if writes or _synced else _WRITES)
    chosen = [slot for slot in slots if slot.library in able and slot.name in wanted and slot not in _slots]
    _slots.update(put_into(chosen, {name: _function(name).address for name in wanted}))


def _looked_up(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def look_up(library: ForeignLibrary, name: str) -> object:
        """Redirect a function that a rank calls by `ctypes`, too, if it is the C library's."""
        found = original(library, name)
        if (
            (name not in _SYNCS and name not in _NAMES)
            or type(library) is not ForeignLibrary
            or current_process() is None
        ):
            return found
        if name not in _known() or not is_address_of(found, _function(name).real_address):
            return found
        return library._FuncPtr(_function(name).address)

    return look_up


@functools.cache
def _function(name: str) -> LedFunction:
    """Return the function that C code calls in place of the function `name`."""
    stands_in = _STANDS_IN[name]

    def lead(real: _Real) -> Callable[..., object]:
        def call(*args: object) -> object:
            if current_process() is None:
                return real(*args)
            return stands_in(real, *args)

        return call

    return LedFunction(name, _ALL[name], lead)


def _then(real: _Real, args: tuple[object, ...], note: Callable[[], None]) -> int:
    """Call the function, then `note` what it did; preserves its result and its error number for the caller."""
    result = real(*args)
    number = error_number()
    if result != -1:
        note()
    set_error_number(number)
    return result


# -- syncs -----------------------------------------------------------------------------------------------------------


def _fsync(real: _Real, fd: int, *, data_only: bool = False) -> int:
    found = reached(fd)
    if found is None:
        return real(fd)
    disk, file = found
    disk.synced_unseen(file.process, file.inode, file.path, data_only=data_only)
    return 0  # the real file loses no power


def _fdatasync(real: _Real, fd: int) -> int:
    return _fsync(real, fd, data_only=True)


def _syncfs(real: _Real, fd: int) -> int:
    found = reached(fd)
    if found is None:
        return real(fd)
    found[0].synced_unseen(found[1].process, None, "")
    return 0


def _sync(real: _Real) -> int | None:
    disks, process = present_disks(), current_process()
    if disks is None or process is None or disks.busy:
        return real()
    for disk in disks.of(process.host):
        disk.synced_unseen(process, None, "")
    return None


def _msync(real: _Real, address: int, length: int, flags: int) -> int:
    disks, process = present_disks(), current_process()

    def note() -> None:
        file = mapped_file(address) if flags & _MS_SYNC and disks is not None and not disks.busy else None
        if file is not None and disks is not None and process is not None:
            for disk in disks.of(process.host):
                disk.scan()
                found = disk.mapped(file.device, file.number)
                if found is not None:
                    disk.synced_unseen(process, *found, data_only=True)

    return _then(real, (address, length, flags), note)


# -- names -----------------------------------------------------------------------------------------------------------


def _place(path: bytes | None, folder: int = -100, *, follow: bool = True) -> Spot | None:
    if path is None:
        return None
    if folder >= 0 and not os.path.isabs(path):
        above = reached(folder)
        path = None if above is None else os.fsencode(above[0].real(above[1].path)) + b"/" + path
    return None if path is None else spot(path, follow=follow)


def _open(real: _Real, path: bytes | None, flags: int, mode: int) -> int:
    return _opened(real, (path, flags, mode), _place(path) if flags & _CHANGING else None, flags)


def _openat(real: _Real, folder: int, path: bytes | None, flags: int, mode: int) -> int:
    place = _place(path, folder) if flags & _CHANGING else None
    return _opened(real, (folder, path, flags, mode), place, flags)


_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _opened(real: _Real, args: tuple[object, ...], place: Spot | None, flags: int) -> int:
    if place is None:
        return real(*args)
    _keep(place)
    number = real(*args)
    error = error_number()
    if number >= 0:
        inode = place.disk.find(place.place)
        if inode is not None:
            place.disk.pin(inode)
            if flags & _SYNCED_WRITES:
                _synced[number] = place.disk, inode.number
                _reach(writes=True)
    set_error_number(error)
    return number


def _keep(place: Spot) -> None:
    """Keep the durable content of a file before C code may change it."""
    inode = place.disk.find(place.place)
    if inode is not None:
        place.disk.pin(inode, place.place)


def _rename(real: _Real, source: bytes | None, target: bytes | None) -> int:
    return _renamed(real, (source, target), _place(source, follow=False), _place(target, follow=False))


def _renameat(real: _Real, *args: Any) -> int:
    above, source, beneath, target, *_ = args
    return _renamed(real, args, _place(source, above, follow=False), _place(target, beneath, follow=False))


def _renamed(real: _Real, args: tuple[object, ...], *named: Spot | None) -> int:
    places = [place for place in named if place is not None]
    for place in places:
        _keep(place)

    def note() -> None:
        for place in reversed(places):  # the new name first: that also removes the old one
            place.disk.find(place.place)

    return _then(real, args, note)


def _unlink(real: _Real, path: bytes | None) -> int:
    place = _place(path, follow=False)
    if place is None:
        return real(path)
    _keep(place)

    def note() -> None:
        place.disk.find(place.place)

    return _then(real, (path,), note)


# -- writes to files that are open with O_SYNC or O_DSYNC ------------------------------------------------------------


def _write(real: _Real, fd: int, *args: object) -> int:
    known = _synced.get(fd)
    if known is None:
        return real(fd, *args)

    def note() -> None:
        found = reached(fd)
        if found is None or (found[0], found[1].inode.number) != known or not flags_of(fd) & _SYNCED_WRITES:
            del _synced[fd]  # another file has this number by now
            return
        disk, file = found
        opened = OpenFile.with_flags(file.inode, file.process, file.path, flags_of(fd))
        disk.synced_unseen(file.process, file.inode, file.path, data_only=opened.syncs == "data")

    return _then(real, (fd, *args), note)


_STANDS_IN: dict[str, Callable[..., object]] = {
    "fsync": _fsync,
    "fdatasync": _fdatasync,
    "syncfs": _syncfs,
    "sync": _sync,
    "msync": _msync,
    "open": _open,
    "open64": _open,
    "openat": _openat,
    "openat64": _openat,
    "rename": _rename,
    "renameat": _renameat,
    "renameat2": _renameat,
    "unlink": _unlink,
    **dict.fromkeys(_WRITES, _write),
}
