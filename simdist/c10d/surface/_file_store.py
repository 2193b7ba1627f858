"""FileStores: all clients of a file, under any path, share its keys, and the keys go when the file does.

Torch removes the file when no process has it open and `world_size` clients have closed it (2.13's FileStore.cpp), so
that the next group at the same path begins anew. A process that is killed closes nothing: the file stays, with its
content. A program may remove it, too. Here the keys are in memory. The file exists as long as torch's would, and holds
one line that says this. A file that a store made is removed when the world ends, so that the next run finds the same
state as this run. A file that another run has made may be removed by that run at any moment; the keys here stay. If
the folder does not exist, a store waits for it, as torch's does.

In doubt: a store that is open while the program removes the file keeps the old keys, but torch opens a new file. A file
that is removed and made again counts as the same file if the file system gives it the same number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch.distributed as dist

from simdist.c10d.surface._store import SimStore
from simdist.c10d.surface._store_server import StoreServer
from simdist.inside.python import innermost, original
from simdist.process import SimProcess, current_process, current_runtime

__all__ = ["open_file_store"]


_LONGEST_NS, _POLL_NS = 300_000_000_000, 100_000_000  # as in FileStore.cpp
_CONTENT = b"simdist: the keys of this FileStore are in memory\n"
_F = TypeVar("_F", bound=Callable[..., object])


def _of_system(function: _F) -> _F:
    """Return a function without the patches of simdist and its judges: it is not the program that uses the file."""
    return original(innermost(function))


class _FileServer(StoreServer):
    """The keys of one file, from its creation until its removal."""

    def __init__(self, path: str, place: str) -> None:
        super().__init__(path)
        self._place = place
        self.removed = False
        self._exists = False  # the file existed at the last opening, and no other run had made it
        self._number: tuple[int, int] | None = None  # the file's device and inode
        self._made = False  # a store made the file, not the program
        self._open = 0
        self._closed = 0

    def opened_by(self, process: SimProcess | None, store: SimStore, world_size: int) -> None:
        self._open += 1
        if process is not None:
            process.when_dropped(store, self._close, process, world_size)

    def _close(self, process: SimProcess, world_size: int) -> None:
        if process.running:
            self._open -= 1
            self._closed += 1
            if not self.removed and self._open == 0 and 0 <= world_size <= self._closed:
                self._remove()

    def look(self, exists: bool) -> None:
        """Make the file unless it `exists`.

        Raises:
            OSError: the file can't be opened.
        """
        self._exists = exists and (self._made or not self._is_of_another_run())
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with contextlib.suppress(FileExistsError):  # another run has made it meanwhile
            file = _of_system(os.open)(self._place, flags if exists else flags | os.O_EXCL, 0o644)
            if not exists:
                _of_system(os.write)(file, _CONTENT)
                self._made = True
            self._number = self._number_now()
            _of_system(os.close)(file)

    def is_gone(self) -> bool:
        """True if the file has been removed, or another one made in its place, since it was opened."""
        return self.removed or ((self._exists or self._made) and self._number_now() != self._number)

    def _number_now(self) -> tuple[int, int] | None:
        try:
            found = _of_system(os.stat)(self._place)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _is_of_another_run(self) -> bool:
        try:
            file = _of_system(os.open)(self._place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return _of_system(os.read)(file, len(_CONTENT)) == _CONTENT
            finally:
                _of_system(os.close)(file)
        except OSError:
            return False

    def _remove(self) -> None:
        self.removed = True
        if self._exists or self._made:
            with contextlib.suppress(OSError):
                _of_system(os.unlink)(self._place)

    def forget(self) -> None:
        """Release the communicators, and remove the file if a store made it."""
        super().forget()
        if self._made and not self.removed:
            self._remove()


def open_file_store(servers: dict[tuple[Hashable, ...], Any], path: str, world_size: int) -> SimStore:
    """Return a client of this file's server, which is new if the file was removed since it was opened.

    Waits up to 300 s for a folder that does not exist (2.13's FileStore.cpp).

    Raises:
        DistStoreError: the file can't be opened; with the system's text.
    """
    _wait_for_folder(path)
    place, exists = os.path.realpath(path), os.path.exists(path)  # noqa: PTH110  # as cheap as it gets
    server = servers.get(("file", place))
    if server is None or server.is_gone():
        if server is not None:
            servers["removed file", place, len(servers)] = server  # its open stores go on with it
            server.removed = True
        server = servers["file", place] = _FileServer(path, place)
    try:
        server.look(exists)
    except OSError as error:
        raise dist.DistStoreError(error.strerror) from None
    store, process, runtime = SimStore(server, kind="file"), current_process(), current_runtime()
    server.opened_by(process, store, world_size)
    if process is not None and runtime is not None:
        runtime.collect_in_rounds()  # garbage collection closes a store in a cycle, and others see that
    return store


def _wait_for_folder(path: str) -> None:
    process, folder = current_process(), os.path.dirname(path) or "."  # noqa: PTH120  # as cheap as it gets
    if process is None:
        return
    due_ns = process.simulation.now_ns + _LONGEST_NS
    while not os.path.exists(folder) and process.simulation.now_ns < due_ns:  # noqa: PTH110  # likewise
        process.simulation.sleep(_POLL_NS)
