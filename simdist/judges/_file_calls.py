"""Reports of the ranks' use of files, by wrapped functions: `open`, `os`, `fcntl` and `torch.save`.

The functions are wrapped in their modules, for the length of a world with a judge of files; a simulated disk below
stays as it is. Not reported: C code that opens files itself (safetensors, mmap), and calls through names that a program
imported before.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import torch

from simdist.judges._events import FileUsed
from simdist.judges._sites import site_of
from simdist.process import Patches, SimProcess, current_process

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike, FileDescriptorOrPath, StrOrBytesPath

    # Of a `FileUsed`.
    Use = Literal["read", "write", "append", "open", "create", "rename", "remove", "seen", "missed", "lock"]

__all__ = ["wrap_files"]

_T = TypeVar("_T")

_SYSTEM = ("/dev/", "/proc/", "/sys/")


def wrap_files(patches: Patches) -> None:
    """Report `FileUsed` until the patches are undone."""
    for owner in (builtins, io):
        patches.wrap(owner, "open", _opening)
    patches.wrap(os, "open", _opening_descriptor)
    for name in ("rename", "replace"):
        patches.wrap(os, name, _renaming)
    patches.wrap(os, "link", _linking)
    for name in ("unlink", "remove"):
        patches.wrap(os, name, _removing)
    patches.wrap(os, "mkdir", _making)
    patches.wrap(os, "stat", _looking)
    patches.wrap(torch, "save", _saving)
    if fcntl is not None:
        for name in ("flock", "lockf"):
            patches.wrap(fcntl, name, _locking)


def _path_of(given: StrOrBytesPath, folder: object = None) -> str:
    """Return the absolute path; empty if `given` is no path, or a path of the system or of Python's bytecode."""
    try:
        path = os.fsdecode(given)
        if folder is not None and not os.path.isabs(path):
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    except (TypeError, OSError):
        return ""
    path = os.path.abspath(path)
    return "" if path.startswith(_SYSTEM) or path.endswith(".pyc") else path


def _identity(said: os.stat_result) -> str:
    return f"{said.st_dev}:{said.st_ino}"


def _empty(path: str) -> str:
    """Identify a file that is there and has no bytes; "" for any other."""
    try:
        said = os.lstat(path)
    except OSError:
        return ""
    return "" if said.st_size else _identity(said)


def _reporter() -> SimProcess | None:
    process = current_process()
    return process if process is not None and process.simulation.bus.hears(FileUsed) else None


def _report(process: SimProcess, use: Use, path: str, given: FileDescriptorOrPath, to: str = "") -> None:
    if path:
        name = str(given) if isinstance(given, int) else os.fsdecode(given)
        process.simulation.bus.report(FileUsed(process, use, path, name, to, site_of(sys._getframe(2))))


def _use_of(mode: object) -> Use:
    text = mode if isinstance(mode, str) else "r"
    if "x" in text:
        return "create"
    if "a" in text:
        return "append"
    return "write" if "w" in text or "+" in text else "read"


def _opening(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def open(file: FileDescriptorOrPath, mode: str = "r", *args: object, **kwargs: object) -> _T:
        process = None if isinstance(file, int) else _reporter()
        path = "" if process is None or isinstance(file, int) else _path_of(file)
        # With an opener the name may be a folder's, as in tempfile; the opener's `os.open` reports the file itself.
        if process is None or not path or kwargs.get("opener") is not None:
            return original(file, mode, *args, **kwargs)
        use = _use_of(mode)
        empty = _empty(path) if use == "write" else ""
        try:
            opened = original(file, mode, *args, **kwargs)
        except FileNotFoundError:
            _report(process, "missed", path, file)
            raise
        except FileExistsError:
            _report(process, "seen", path, file)
            raise
        _report(process, use, path, file, empty)
        return opened

    return open


def _opening_descriptor(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def open(path: StrOrBytesPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        process = _reporter()
        place = "" if process is None else _path_of(path, dir_fd)
        if process is None or not place or os.path.isdir(place):
            return original(path, flags, mode, dir_fd=dir_fd)
        empty = _empty(place) if flags & os.O_TRUNC else ""
        try:
            number = original(path, flags, mode, dir_fd=dir_fd)
        except FileNotFoundError:
            _report(process, "missed", place, path)
            raise
        except FileExistsError:
            _report(process, "seen", place, path)
            raise
        use: Use = "read"
        if flags & (os.O_WRONLY | os.O_RDWR):
            use = "append" if flags & os.O_APPEND else "write" if flags & os.O_TRUNC else "open"
        if flags & os.O_CREAT and flags & os.O_EXCL:
            use = "create"
        _report(process, use, place, path, empty if use == "write" else "")
        return number

    return open


def _renaming(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def rename(
        src: StrOrBytesPath, dst: StrOrBytesPath, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> _T:
        result = original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        process = _reporter()
        if process is not None:
            _report(process, "rename", _path_of(src, src_dir_fd), dst, _path_of(dst, dst_dir_fd))
        return result

    return rename


def _linking(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def link(src: StrOrBytesPath, dst: StrOrBytesPath, *args: object, **kwargs: object) -> _T:
        result = original(src, dst, *args, **kwargs)
        process = _reporter()
        if process is not None:
            _report(process, "create", _path_of(dst, kwargs.get("dst_dir_fd")), dst)
        return result

    return link


def _removing(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def unlink(path: StrOrBytesPath, *, dir_fd: int | None = None) -> _T:
        process = _reporter()
        place = "" if process is None else _path_of(path, dir_fd)
        result = original(path, dir_fd=dir_fd)
        if process is not None:
            _report(process, "remove", place, path)
        return result

    return unlink


def _making(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def mkdir(path: StrOrBytesPath, mode: int = 0o777, *, dir_fd: int | None = None) -> _T:
        process = _reporter()
        try:
            result = original(path, mode, dir_fd=dir_fd)
        except FileExistsError:
            if process is not None:
                _report(process, "seen", _path_of(path, dir_fd), path)
            raise
        if process is not None:
            _report(process, "create", _path_of(path, dir_fd), path)
        return result

    return mkdir


def _looking(original: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    @functools.wraps(original)
    def stat(path: FileDescriptorOrPath, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        process = None if isinstance(path, int) else _reporter()
        if process is None or isinstance(path, int):
            return original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        try:
            found = original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        except FileNotFoundError:
            _report(process, "missed", _path_of(path, dir_fd), path)
            raise
        _report(process, "seen", _path_of(path, dir_fd), path)
        return found

    return stat


def _saving(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def save(obj: object, f: object, *args: object, **kwargs: object) -> _T:
        if isinstance(f, str | os.PathLike) and (process := _reporter()) is not None:  # torch's C++ opens the file
            _report(process, "write", _path_of(f), f)
        return original(obj, f, *args, **kwargs)

    return save


def _locking(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def lock(fd: FileDescriptorLike, *args: object, **kwargs: object) -> _T:
        result = original(fd, *args, **kwargs)
        process = _reporter()
        if process is not None:
            _report(process, "lock", _identity(os.fstat(fd if isinstance(fd, int) else fd.fileno())), "")
        return result

    return lock
