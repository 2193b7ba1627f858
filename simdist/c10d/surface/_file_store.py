"""FileStores: the keys of a file are shared by all who open it, under any path, and go when the file does.

Torch removes the file when nobody has it open any more and as many have closed it as the store was opened for (2.13's
FileStore.cpp), so that the next group at the same path begins anew. A process that is killed closes nothing: the file
stays, with all that was written. A program may remove it, too. Here the keys are in memory and no file is made; one
that the program made, as `tempfile.mkstemp` does, is looked at when the store is opened.

In doubt: who has the file open while the program removes it goes on with the old keys, where torch opens a new file;
and a file that is removed and made again before anyone opens it counts as the same.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable
from typing import Any

from simdist.c10d.surface._store import SimStore
from simdist.c10d.surface._store_server import StoreServer
from simdist.process import SimProcess, current_process, current_runtime

__all__ = ["open_file_store"]


class _FileServer(StoreServer):
    """The keys of one file, from when it is made until it is removed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.exists = False  # the program made a file there, when it was opened last
        self.removed = False
        self._open = 0
        self._closed = 0

    def opened_by(self, process: SimProcess | None, store: SimStore, world_size: int) -> None:
        self._open += 1
        weakref.finalize(store, self._close, process, world_size).atexit = False

    def _close(self, process: SimProcess | None, world_size: int) -> None:
        if process is not None and process.running:
            self._open -= 1
            self._closed += 1
            self.removed = self.removed or (self._open == 0 and 0 <= world_size <= self._closed)


def open_file_store(servers: dict[tuple[Hashable, ...], Any], path: str, world_size: int) -> SimStore:
    """A client of the server of this file, which is a new one if the file has been removed since it was opened."""
    place, exists = os.path.realpath(path), os.path.exists(path)  # noqa: PTH110  # as cheap as it gets
    server = servers.get(("file", place))
    if server is None or server.removed or (server.exists and not exists):
        if server is not None:
            servers["removed file", place, len(servers)] = server  # those who have it open go on with it
        server = servers["file", place] = _FileServer(path)
    server.exists = exists
    store, process, runtime = SimStore(server, kind="file"), current_process(), current_runtime()
    server.opened_by(process, store, world_size)
    if process is not None and runtime is not None:
        runtime.collect_in_rounds()  # a store in a cycle is closed by the collector, and others see that
    return store
