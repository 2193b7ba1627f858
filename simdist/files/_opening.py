"""`open` on a simulated disk: Python's own file objects, over a raw one whose writes are effects."""

from __future__ import annotations

import functools
import io
import os
import warnings
import weakref
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from simdist.files._by_path import open_file, open_to_read
from simdist.files._mounted import MountedDisk, OpenFile
from simdist.files._present import Spot, opened, present_disks, spot
from simdist.process import Patches, Replacement, SimProcess, current_process

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["DiskFile", "flush_all", "install"]

_FLAGS = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL}
_buffers: dict[SimProcess, weakref.WeakSet[IO[bytes] | IO[str]]] = {}  # files that are open for writing, with a buffer


def install(patches: Patches) -> None:
    """Let ranks open files on the disk."""
    patches.redirect(_REPLACEMENTS)
    patches.on_undo(_buffers.clear)


def flush_all(process: SimProcess) -> None:
    """Write what is still in buffers, as an interpreter does at its end."""
    for file in sorted(_buffers.pop(process, ()), key=lambda each: str(each.name)):
        if not file.closed:
            file.flush()


class DiskFile(io.FileIO):
    """A file on a simulated disk that is open for writing."""

    def __init__(self, disk: MountedDisk, opened: OpenFile, number: int, mode: str, *, closefd: bool) -> None:
        super().__init__(number, mode, closefd=closefd)
        self._disk = disk
        self._opened = opened
        self._closefd = closefd

    @property
    def is_cut_off(self) -> bool:
        """True if its process has ended."""
        return self._opened.cut_off

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, and inform the disk."""
        opened = self._opened
        content = bytes(data)
        if opened.cut_off:
            return len(content)  # a process that has ended writes nothing
        offset = opened.inode.size if opened.appends else self.tell()
        return self._disk.write(opened, offset, content, super().write)

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, and inform the disk."""
        opened = self._opened
        wanted = self.tell() if size is None else size
        if opened.cut_off:
            return wanted
        truncate = super().truncate
        self._disk.resize(opened.process, opened.inode, opened.path, wanted, lambda: truncate(wanted))
        return wanted

    def close(self) -> None:
        """Close, and inform the disk."""
        if not self.closed and self._closefd:
            number = self.fileno()
            if self._disk.open.get(number) is self._opened:
                self._disk.close(number)
        if self.is_cut_off:
            with warnings.catch_warnings():  # the program did not forget to close it
                warnings.simplefilter("ignore", ResourceWarning)
                super().close()
        else:
            super().close()

    def _dealloc_warn(self, source: object) -> None:
        if not self.is_cut_off:
            super()._dealloc_warn(source)  # type: ignore[misc]


def _open(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> object:
        process = current_process()
        simple = mode.replace("b", "").replace("t", "") if isinstance(mode, str) else ""
        if process is None or simple in ("r", ""):
            disks = None if process is None or opener is not None or isinstance(file, int) else present_disks()
            place = spot(file, follow=True) if disks is not None and disks.has_clients else None
            if place is not None and place.disk.clients is not None:
                return _read(original, place, file, mode, buffering, encoding, errors, newline, closefd)
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = simple.replace("+", "")
        is_number = isinstance(file, int)
        place = None if is_number else spot(file, follow=True)
        if plain not in _FLAGS or len(simple) > 2 or (place is None and not (is_number and opened(file))):
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if ("b" in mode and (encoding or errors or newline is not None)) or ("b" in mode and "t" in mode):
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)  # which raises
        flags = _FLAGS[plain] | (os.O_RDWR if "+" in simple else os.O_WRONLY) | os.O_CLOEXEC
        if is_number:
            number = file
        elif opener is not None:
            number = opener(file, flags)
        else:
            assert place is not None
            number = open_file(place, flags, lambda: _real_open(file, flags))
        there = opened(number)
        if there is None:  # the program's opener has opened something else
            return original(number, mode, buffering, encoding, errors, newline, closefd)
        raw = DiskFile(*there, number, plain + ("+" if "+" in simple else ""), closefd=closefd)
        raw.name = file
        return _layered(process, raw, mode, buffering, encoding, errors, newline)

    return open


def _read(original: Callable[..., Any], place: Spot, *args: object) -> object:
    """Open a file of a file server's disk for reading."""

    def opener(name: object, flags: int) -> int:
        return open_to_read(place, flags, lambda: _real_open(name, flags), name)

    file = original(*args, opener)
    inode, clients = place.disk.find(place.place), place.disk.clients
    if inode is not None and clients is not None:
        clients.reads(place.process, inode, file)
    return file


def _real_open(file: object, flags: int) -> int:
    from simdist.process import original

    really: Callable[..., int] = original(os.open)
    return really(file, flags, 0o666)


def _layered(
    process: SimProcess,
    raw: DiskFile,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> object:
    """Wrap a raw file as `open` does."""
    if buffering == 0:
        if "b" not in mode:
            raw.close()
            raise ValueError("can't have unbuffered text I/O")
        return raw
    by_line = buffering == 1 and "b" not in mode
    size = getattr(os.fstat(raw.fileno()), "st_blksize", 0) or io.DEFAULT_BUFFER_SIZE
    if buffering > 1:
        size = buffering
    buffer = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
    kept = _buffers.setdefault(process, weakref.WeakSet())
    if "b" in mode:
        kept.add(buffer)
        return buffer
    text: Any = io.TextIOWrapper(buffer, encoding, errors, newline, by_line)
    text.mode = mode
    kept.add(text)
    return text


_REPLACEMENTS = (Replacement(io, "open", _open),)
