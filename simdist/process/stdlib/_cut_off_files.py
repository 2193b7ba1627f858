"""Keeps a process that was killed from changing files.

Python can end a thread only by unwinding it, which happens when the world ends. Then a killed process would still run
its `finally` blocks and context managers, and write the buffers of its files. A real process ends without them: no
temporary file is removed, no emergency checkpoint is written, the rest of a file is lost.

So a doomed task changes no file. A function that would return nothing returns at once, since finalizers call it, and an
exception in a finalizer is printed; a function that would open a file ends the task. Files that the task has left open
are closed below their buffers (`FileTimes.close_left`), as the system does, before a thread of the host gives up the
task's objects.

The replacements are installed only if tasks are left when a world ends.

In doubt: files that C code opens are not seen, except those of torch's writer (`_saved_files`). Functions of `os` that
a module took by name, or as a default argument, are the real ones, such as the one by which `NamedTemporaryFile`
removes its file.
"""

from __future__ import annotations

import _io
import builtins
import functools
import io
import mmap
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, ParamSpec, TypeVar

from simdist.inside.python import note_wrapper, without_wrapper
from simdist.kernel import TaskKilled
from simdist.process._runtime import Make, Patches, current_process

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath, ReadableBuffer, StrOrBytesPath

__all__ = ["install", "is_cut_off"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def is_cut_off() -> bool:
    """True on a task that is being unwound: what it does has no effect."""
    process = current_process()
    task = None if process is None else process.simulation.current
    return task is not None and task.doomed


def _open(original: Callable[..., IO[str] | IO[bytes]]) -> Callable[..., IO[str] | IO[bytes]]:
    @functools.wraps(original)
    def open(file: FileDescriptorOrPath, mode: str = "r", *args: object, **kwargs: object) -> IO[str] | IO[bytes]:
        if isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode) and is_cut_off():
            raise TaskKilled
        return original(file, mode, *args, **kwargs)

    return open


def _os_open(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def open(path: StrOrBytesPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & _CHANGES and is_cut_off():
            raise TaskKilled
        return original(path, flags, mode, dir_fd=dir_fd)

    return open


def _leaving_undone(original: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """For functions that return nothing: they do nothing."""

    @functools.wraps(original)
    def change(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        return None if is_cut_off() else original(*args, **kwargs)

    return change


def _ending(original: Callable[_P, _T]) -> Callable[_P, _T]:
    """For functions that return how much they have written: they end the task."""

    @functools.wraps(original)
    def write(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if is_cut_off():
            raise TaskKilled
        return original(*args, **kwargs)

    return write


def _write(original: Callable[[io.FileIO, ReadableBuffer], int]) -> Callable[[io.FileIO, ReadableBuffer], int]:
    """For file objects, whose buffers are written when finalizers close them: drop the data."""

    @functools.wraps(original)
    def write(self: io.FileIO, data: ReadableBuffer, /) -> int:
        return memoryview(data).nbytes if is_cut_off() else original(self, data)

    return write


_IN_OS: dict[str, Make] = {
    "open": _os_open,
    **dict.fromkeys(("mkdir", "mkfifo", "mknod", "unlink", "remove", "rmdir"), _leaving_undone),
    **dict.fromkeys(("rename", "replace", "link", "symlink", "utime"), _leaving_undone),
    **dict.fromkeys(("chmod", "fchmod", "lchmod", "chown", "fchown", "lchown"), _leaving_undone),
    **dict.fromkeys(("setxattr", "removexattr", "truncate", "ftruncate", "posix_fallocate"), _leaving_undone),
    **dict.fromkeys(("write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range"), _ending),
}


def _wrap(patches: Patches, owner: object, name: str, make: Make) -> None:
    inner = without_wrapper(getattr(owner, name))
    patches.wrap(owner, name, make)
    note_wrapper(getattr(owner, name), inner)


def install(patches: Patches) -> None:
    """Keep killed processes from changing files."""
    for owner in (builtins, io, _io):
        _wrap(patches, owner, "open", _open)
    for name, make in _IN_OS.items():
        if hasattr(os, name):
            _wrap(patches, os, name, make)
    patches.wrap_all_in_type(_io.FileIO, {"write": _write, "truncate": _ending})
    patches.wrap_all_in_type(mmap.mmap, {"flush": _leaving_undone})
