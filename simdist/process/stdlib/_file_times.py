"""When files were written, in virtual time: what `os.stat` shows a rank of files that ranks have written.

Programs compare a file's times with `time.time()`, or two files' with each other: for a stale lock, or the newest
checkpoint. The real times mean nothing there. So this module notes what a rank does to a file or a folder, with the
time that its calendar shows, and `os.stat` and its like return that. The files themselves keep their real times, for
the host and for programs that ranks start, which have real clocks too. Files that no rank has written keep their real
times everywhere.

The module sees what Python code calls: `open`, writes of file objects (when their buffers are written), functions of
`os`, torch's own writer. A file that C code has written otherwise gets the time at which a rank first looks at it after
it was made, or has grown or shrunk.

The same holds on a simulated disk: the layer below `os` and `open` there announces its effects, and notes the times of
those that a crash may interrupt (`wrote_file` and its like). A file that a crash of the host brings back has the times
that it had (`assign`).

Stores to a mapping count when it is flushed; so does a flush without a store, where the system would change nothing.

In doubt: the import system always sees real times, for it compares them with those in compiled files, which outlive a
world. Changes by C code in place are not seen, and neither are files that it makes in the few milliseconds in which the
system's clock for files has not moved since the world began.
"""

from __future__ import annotations

import _io
import builtins
import contextlib
import functools
import io
import itertools
import mmap
import os
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from simdist.inside.python import address_of_buffer, inner_of, mapped_file, note_wrapper
from simdist.inside.python import original as real
from simdist.kernel import Task
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, current_process, current_runtime

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import FileDescriptorOrPath, HasFileno, StrOrBytesPath

__all__ = ["FileTimes", "install", "moved_file", "touched_folder", "wrote_file"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_F = TypeVar("_F", bound="HasFileno")
_Reduced = tuple[type[os.stat_result], tuple[tuple[int, ...], dict[str, float]]]
KeptTimes = tuple[int, int, int]
"""The times at which a file was last read, written and changed, in nanoseconds since 1970."""

_SECOND_NS = 10**9
_WRITES = os.O_WRONLY | os.O_RDWR
_stat: Callable[..., os.stat_result] = os.stat  # it checks its own arguments
_fstat = os.fstat
_numbers = itertools.count()
_CLOCK_OF_FILES = 5 if sys.platform == "linux" else 0  # CLOCK_REALTIME_COARSE, which the module does not name


class _Times:
    """The times of one file or folder."""

    __slots__ = ("accessed_ns", "changed_ns", "modified_ns", "size")

    def __init__(self, accessed_ns: int, modified_ns: int, changed_ns: int, size: int) -> None:
        self.accessed_ns = accessed_ns
        self.modified_ns = modified_ns
        self.changed_ns = changed_ns
        self.size = size  # when it was last looked at


class FileTimes:
    """The times of everything that ranks of a world have written, by device and number."""

    def __init__(self) -> None:
        # By the system's clock for files, which moves every few milliseconds.
        self.began_ns = real(time.clock_gettime_ns)(_CLOCK_OF_FILES)
        self._known: dict[tuple[int, int], _Times] = {}
        self._open: dict[Task, weakref.WeakSet[io.FileIO]] = {}  # for writing, by the main task of the process
        self._buffers: dict[Task, weakref.WeakValueDictionary[int, io.IOBase]] = {}  # above them, in order

    def note_open(self, process: SimProcess, file: object) -> None:
        """Note a file that a rank has opened for writing."""
        main, raw = process.main, getattr(getattr(file, "buffer", file), "raw", None)
        if main is None or type(raw) is not io.FileIO:  # one of a simulated disk knows itself which process has ended
            return
        self._open.setdefault(main, weakref.WeakSet()).add(raw)
        if process.parent is not None or not isinstance(file, io.IOBase):
            return  # a child ends as real ones do, by `os._exit`, which writes no buffers
        if main not in self._buffers:
            self._buffers[main] = weakref.WeakValueDictionary()
            process.at_exit.insert(0, (self._write_buffers, (main,), {}))  # it is called last
        self._buffers[main][next(_numbers)] = file

    def _write_buffers(self, main: Task) -> None:
        """Write the buffers of files that are still open, as the interpreter does at its end."""
        for file in list(self._buffers.pop(main).values()):
            with contextlib.suppress(OSError, ValueError):  # no room; closed already
                file.flush()

    def close_left(self) -> None:
        """Close the files of killed processes; the contents of the buffers above them are lost."""
        for main, files in self._open.items():
            if main.doomed:
                for file in files:
                    file.close()
        self._open.clear()

    def written(self, process: SimProcess, found: os.stat_result, *, made: bool = False) -> None:
        """Note that a rank has made or written a file."""
        now_ns = _now_ns(process)
        accessed_ns = now_ns if made else self._of(process, found).accessed_ns
        self._known[found.st_dev, found.st_ino] = _Times(accessed_ns, now_ns, now_ns, found.st_size)

    def changed(self, process: SimProcess, found: os.stat_result) -> None:
        """Note that a rank has changed a file's metadata: its name, its mode."""
        times = self._known[found.st_dev, found.st_ino] = self._of(process, found)
        times.changed_ns = _now_ns(process)

    def set(self, process: SimProcess, found: os.stat_result, *, exact: bool) -> None:
        """Note that a rank has set a file's times: to those that it really has now if `exact`, or to the present."""
        now_ns = _now_ns(process)
        accessed_ns, modified_ns = (found.st_atime_ns, found.st_mtime_ns) if exact else (now_ns, now_ns)
        self._known[found.st_dev, found.st_ino] = _Times(accessed_ns, modified_ns, now_ns, found.st_size)

    def reported(self, process: SimProcess, found: os.stat_result) -> os.stat_result:
        """What `os.stat` returns to a rank: `found` with the virtual times."""
        key = found.st_dev, found.st_ino
        times = self._known.get(key)
        if times is None:
            if not self._is_new(found):
                return found
            now_ns = _now_ns(process)
            times = self._known[key] = _Times(now_ns, now_ns, now_ns, found.st_size)
        elif times.size != found.st_size and stat.S_ISREG(found.st_mode):
            times.modified_ns = times.changed_ns = _now_ns(process)
            times.size = found.st_size
        kind, (plain, named) = cast("_Reduced", found.__reduce__())
        three = times.accessed_ns, times.modified_ns, times.changed_ns
        for name, each_ns in zip(("st_atime", "st_mtime", "st_ctime"), three, strict=True):
            named |= {name: each_ns / _SECOND_NS, f"{name}_ns": each_ns}
        return kind((*plain[:7], *(each_ns // _SECOND_NS for each_ns in three)), named)

    def kept(self, found: os.stat_result) -> KeptTimes | None:
        """The times that ranks see now, for `assign`; None if they would be those of the first look."""
        times = self._known.get((found.st_dev, found.st_ino))
        if times is not None:
            return times.accessed_ns, times.modified_ns, times.changed_ns
        if self._is_new(found):
            return None
        return found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns

    def assign(self, found: os.stat_result, kept: KeptTimes | None) -> None:
        """Give a file the `kept` times of the other file, or the earlier state, whose place it has taken."""
        self._known.pop((found.st_dev, found.st_ino), None)
        if kept is not None:
            self._known[found.st_dev, found.st_ino] = _Times(*kept, found.st_size)

    def _is_new(self, found: os.stat_result) -> bool:
        return found.st_mtime_ns > self.began_ns and stat.S_ISREG(found.st_mode)

    def _of(self, process: SimProcess, found: os.stat_result) -> _Times:
        reported = self.reported(process, found)
        return _Times(reported.st_atime_ns, reported.st_mtime_ns, reported.st_ctime_ns, found.st_size)


def _now_ns(process: SimProcess) -> int:
    """What the process's calendar shows, and no less than it has shown."""
    now_ns = max(process.epoch_ns + process.simulation.now_ns, process.shown_ns)
    shown_s = process.seen_s[2]
    if now_ns / _SECOND_NS < shown_s:
        now_ns = int(shown_s) * _SECOND_NS + round(shown_s % 1 * _SECOND_NS)
    skew_ns = process.host.skew_ns
    return now_ns if skew_ns is None else now_ns + skew_ns(process.simulation.now_ns)


def _here() -> tuple[SimProcess, FileTimes] | None:
    process, runtime = current_process(), current_runtime()
    if process is None or runtime is None or _under_import(sys._getframe(2)):
        return None
    return process, runtime.extras[FileTimes]


def _under_import(frame: FrameType) -> bool:
    return str(frame.f_code.co_filename).startswith("<frozen importlib")


def wrote_file(path: StrOrBytesPath, *, made: bool = False) -> None:
    """Note that code other than Python's has made or written a file for the calling rank; does nothing elsewhere."""
    here = _here()
    found = None if here is None else _look(path)
    if here is not None and found is not None:
        here[1].written(here[0], found, made=made)
        if made:
            _touch_folder(*here, path, None)


def touched_folder(path: StrOrBytesPath) -> None:
    """Note that the calling rank has made or removed something at a path; does nothing elsewhere."""
    here = _here()
    if here is not None:
        _touch_folder(*here, path, None)


def moved_file(source: StrOrBytesPath, target: StrOrBytesPath, *, linked: bool = False) -> None:
    """Note that the calling rank has renamed a file, or with `linked` added a name; does nothing elsewhere."""
    here = _here()
    if here is not None:
        _moved(here, (source, None), (target, None), linked=linked)


def _moved(
    here: tuple[SimProcess, FileTimes],
    source: tuple[StrOrBytesPath, object],
    target: tuple[StrOrBytesPath, object],
    *,
    linked: bool,
) -> None:
    process, times = here
    found = _look(*target, follow=False)
    if found is not None:
        times.changed(process, found)
    if not linked:
        _touch_folder(process, times, *source)
    _touch_folder(process, times, *target)


def _look(path: object, folder: object = None, *, follow: object = True) -> os.stat_result | None:
    try:
        if isinstance(path, int):
            return real(_fstat)(path)
        return real(_stat)(path, dir_fd=folder, follow_symlinks=follow)
    except (OSError, ValueError, TypeError):
        return None


def _touch_folder(process: SimProcess, times: FileTimes, path: StrOrBytesPath, folder: object) -> None:
    """Note that something was made or removed in the folder of a path."""
    name = os.fspath(path)
    bare = name.rstrip(os.sep) if isinstance(name, str) else name.rstrip(os.fsencode(os.sep))
    above = os.path.dirname(bare)  # noqa: PTH120  # it may be bytes
    found = _look(above or ("." if isinstance(name, str) else b"."), folder)
    if found is not None:
        times.written(process, found)


# -- what makes and writes files -------------------------------------------------------------------------------------


def _opened(here: tuple[SimProcess, FileTimes], number: int, path: StrOrBytesPath, *, made: bool, cut: bool) -> None:
    process, times = here
    found = _look(number) if made or cut else None
    if found is not None and stat.S_ISREG(found.st_mode):
        times.written(process, found, made=made)
        if made:
            _touch_folder(process, times, path, None)


def _open(original: Callable[..., _F]) -> Callable[..., _F]:
    @functools.wraps(original)
    def open(file: FileDescriptorOrPath, mode: str = "r", *args: object, **kwargs: object) -> _F:
        writes = isinstance(mode, str) and any(each in mode for each in "wax+")
        here = _here() if writes else None
        if here is None:
            return original(file, mode, *args, **kwargs)
        made = "r" not in mode and not isinstance(file, int) and _look(file) is None
        opened = original(file, mode, *args, **kwargs)
        if not isinstance(file, int):
            _opened(here, opened.fileno(), file, made=made, cut="w" in mode)
        here[1].note_open(here[0], opened)
        return opened

    return open


def _os_open(original: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(original)
    def open(path: StrOrBytesPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        here = _here() if flags & (_WRITES | os.O_CREAT | os.O_TRUNC) else None
        if here is None:
            return original(path, flags, mode, dir_fd=dir_fd)
        made = bool(flags & os.O_CREAT) and _look(path, dir_fd) is None
        number = original(path, flags, mode, dir_fd=dir_fd)
        process, times = here
        found = _look(number)
        if found is not None and stat.S_ISREG(found.st_mode) and (made or flags & os.O_TRUNC):
            times.written(process, found, made=made)
            if made:
                _touch_folder(process, times, path, dir_fd)
        return number

    return open


def _writing(place: int) -> Make:
    """For functions that write to a descriptor, the argument at this place."""

    def make(original: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(original)
        def write(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            done = original(*args, **kwargs)
            here = _here() if len(args) > place else None
            if here is not None:
                _wrote(here, args[place])
            return done

        return write

    return make


def _wrote(here: tuple[SimProcess, FileTimes], file: object) -> None:
    found = _look(file)
    if found is not None and stat.S_ISREG(found.st_mode):
        here[1].written(here[0], found)


def _of_file_object(original: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(original)
    def write(self: io.FileIO, *args: object) -> _T:
        done = original(self, *args)
        here = _here()
        if here is not None:
            _wrote(here, self.fileno())
        return done

    return write


def _closing(original: Callable[[io.FileIO], None]) -> Callable[[io.FileIO], None]:
    """For a file to which C code may have written, as numpy writes arrays."""

    @functools.wraps(original)
    def close(self: io.FileIO) -> None:
        here = None if self.closed or not self.writable() else _here()
        found = None if here is None else _look(self.fileno())
        if here is not None and found is not None:
            here[1].reported(here[0], found)  # it compares the size
        original(self)

    return close


def _making(original: Callable[..., _T]) -> Callable[..., _T]:
    """For functions that make a folder, a link or another thing at a path, or remove one."""

    @functools.wraps(original)
    def make(path: FileDescriptorOrPath, *args: object, **kwargs: object) -> _T:
        done = original(path, *args, **kwargs)
        here = _here()
        if here is not None:
            process, times = here
            folder = kwargs.get("dir_fd")
            found = _look(path, folder, follow=False)
            if found is not None:
                times.written(process, found, made=True)
            if not isinstance(path, int):
                _touch_folder(process, times, path, folder)
        return done

    return make


def _naming(original: Callable[..., _T]) -> Callable[..., _T]:
    """For functions with two paths, which make a new name, and of which some remove the old one."""

    @functools.wraps(original)
    def name(source: StrOrBytesPath, target: StrOrBytesPath, **kwargs: object) -> _T:
        done = original(source, target, **kwargs)
        here = _here()
        if here is not None:
            old, new = (source, kwargs.get("src_dir_fd")), (target, kwargs.get("dst_dir_fd"))
            _moved(here, old, new, linked=original.__name__ == "link")
        return done

    return name


def _symlink(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def symlink(
        src: StrOrBytesPath,
        dst: StrOrBytesPath,
        target_is_directory: bool = False,
        *,
        dir_fd: int | None = None,
    ) -> None:
        original(src, dst, target_is_directory, dir_fd=dir_fd)
        here = _here()
        if here is not None:
            process, times = here
            found = _look(dst, dir_fd, follow=False)
            if found is not None:
                times.written(process, found, made=True)
            _touch_folder(process, times, dst, dir_fd)

    return symlink


def _utime(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def utime(path: FileDescriptorOrPath, times: tuple[float, float] | None = None, **kwargs: object) -> None:
        original(path, times, **kwargs)
        here = _here()
        found = None
        if here is not None:
            found = _look(path, kwargs.get("dir_fd"), follow=kwargs.get("follow_symlinks", True))
        if here is not None and found is not None:
            here[1].set(here[0], found, exact=times is not None or "ns" in kwargs)

    return utime


def _setting(original: Callable[..., _T]) -> Callable[..., _T]:
    """For functions that set the rights, the owner or an attribute of a file, given a path or a descriptor."""
    follows = original.__name__ not in ("lchmod", "lchown")

    @functools.wraps(original)
    def set(path: FileDescriptorOrPath, *args: object, **kwargs: object) -> _T:
        done = original(path, *args, **kwargs)
        here = _here()
        if here is not None:
            found = _look(path, kwargs.get("dir_fd"), follow=follows and kwargs.get("follow_symlinks", True))
            if found is not None:
                here[1].changed(here[0], found)
        return done

    return set


def _flush(original: Callable[..., _T]) -> Callable[..., _T]:
    """For a mapping: the file has the stored bytes now, if it is a mapping of a file that can be stored to."""

    @functools.wraps(original)
    def flush(self: mmap.mmap, *args: object, **kwargs: object) -> _T:
        done = original(self, *args, **kwargs)
        here = _here()
        at = None if here is None else address_of_buffer(self)
        mapped = None if at is None else mapped_file(at)
        if here is not None and mapped is not None and mapped.is_written:
            found = _look(mapped.path)
            if found is not None and (found.st_dev, found.st_ino) == (mapped.device, mapped.number):
                here[1].written(here[0], found)
        return done

    return flush


# -- what asks ---------------------------------------------------------------------------------------------------------


def _asking(original: Callable[_P, os.stat_result]) -> Callable[_P, os.stat_result]:
    @functools.wraps(original)
    def ask(*args: _P.args, **kwargs: _P.kwargs) -> os.stat_result:
        found = original(*args, **kwargs)
        here = _here()
        return found if here is None else here[1].reported(here[0], found)

    return ask


_OPENS: tuple[tuple[object, str, Make], ...] = tuple((owner, "open", _open) for owner in (builtins, io, _io))
_IN_OS: dict[str, Make] = {
    "open": _os_open,
    "stat": _asking,
    "lstat": _asking,
    "fstat": _asking,
    **dict.fromkeys(("write", "writev", "pwrite", "pwritev", "ftruncate", "truncate", "posix_fallocate"), _writing(0)),
    "sendfile": _writing(0),
    "copy_file_range": _writing(1),
    **dict.fromkeys(("mkdir", "mkfifo", "mknod", "unlink", "remove", "rmdir"), _making),
    **dict.fromkeys(("rename", "replace", "link"), _naming),
    "symlink": _symlink,
    "utime": _utime,
    **dict.fromkeys(("chmod", "fchmod", "lchmod", "chown", "fchown", "lchown"), _setting),
    **dict.fromkeys(("setxattr", "removexattr"), _setting),
}


class _Supported(set[Callable[..., object]]):
    """One of the sets of functions in `os` that support something. A replaced function does what the original does."""

    def __contains__(self, function: object) -> bool:
        # By identity: a function that does something else on ranks has another hash there.
        while function is not None and not any(each is function for each in self):
            function = inner_of(function)
        return function is not None

    def issuperset(self, other: Iterable[object], /) -> bool:
        """True if all these functions do."""
        return all(each in self for each in other)

    def __ge__(self, other: Set[object], /) -> bool:
        return self.issuperset(other)


_SUPPORTED = {
    name: _Supported(each) for name, each in vars(os).items() if name.startswith("supports_") and isinstance(each, set)
}


def _wrap(patches: Patches, owner: object, name: str, make: Make) -> None:
    inner = getattr(owner, name)
    patches.wrap(owner, name, make)
    note_wrapper(getattr(owner, name), inner)


def install(patches: Patches) -> None:
    """Give ranks virtual times of what they write."""
    for owner, name, make in _OPENS:
        _wrap(patches, owner, name, make)
    for name, make in _IN_OS.items():
        if hasattr(os, name):
            _wrap(patches, os, name, make)
    for name, supported in _SUPPORTED.items():
        patches.replace(os, name, supported)
    of_file_objects: dict[str, Make] = {"write": _of_file_object, "truncate": _of_file_object, "close": _closing}
    patches.wrap_all_in_type(_io.FileIO, of_file_objects)
    patches.wrap_all_in_type(mmap.mmap, {"flush": _flush})
    patches.wrap_all_in_type(os.DirEntry, {"stat": _asking})
