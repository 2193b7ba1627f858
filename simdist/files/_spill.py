"""Storage for bytes that were written and not synced: memory, or a file of their own if they are many.

Until a file is durable the model needs its previous content and everything written since; a program that never
syncs would need as much memory as it writes. The spill file has no name, is in the folder of temporary files, and is
freed with the last of its bytes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable

from simdist.process import original

__all__ = ["Spill"]

_MOST_BYTES = 1 << 30  # held in memory at most
_SMALL = 512  # bytes that are too few to spill
_PIECE = 1 << 26  # bytes that go to a file together; it is freed when the last of them is


class Spill:
    """Holds bytes for as long as they are referenced. `held` returns how many the model has in memory."""

    def __init__(self, held: Callable[[], int], *, most_bytes: int = _MOST_BYTES) -> None:
        self._count = held
        self._most = most_bytes
        self._held = 0  # at most, in memory
        self._unsure = 0  # bytes since the last count
        self._folder = tempfile.gettempdir()
        self._piece = memoryview(b"")
        self._file = -1
        self._used = 0

    def hold(self, data: bytes) -> bytes | memoryview:
        """Return the same bytes, in memory or not."""
        self._unsure += len(data)
        if self._held + len(data) > self._most and self._unsure > self._most >> 4:
            self._held, self._unsure = self._count(), 0
        if self._held + len(data) <= self._most or len(data) < _SMALL:
            self._held += len(data)
            return data
        try:
            return self._written(data)
        except OSError:  # no space there: this is no error of the program
            self._held += len(data)
            return data

    def close(self) -> None:
        """Hold nothing more; bytes that are already held stay."""
        if self._file >= 0:
            original(os.close)(self._file)
        self._file, self._piece, self._used = -1, memoryview(b""), 0

    def _written(self, data: bytes) -> memoryview:
        if self._used + len(data) > len(self._piece):
            self._begin(max(len(data), _PIECE))
        at = self._used
        done = 0
        while done < len(data):
            done += original(os.pwrite)(self._file, memoryview(data)[done:], at + done)
        self._used += len(data)
        return self._piece[at : at + len(data)]

    def _begin(self, size: int) -> None:
        self.close()
        number = _unnamed(self._folder)
        original(os.ftruncate)(number, size)
        self._file, self._piece = number, memoryview(mmap.mmap(number, size, prot=mmap.PROT_READ))


def _unnamed(folder: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        number: int = original(os.open)(folder, flags | os.O_TMPFILE, 0o600)
    except (AttributeError, OSError):  # not Linux, or a file system that lacks it
        name = os.path.join(folder, f".simdist-{original(os.getpid)()}-spill")
        number = original(os.open)(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
        original(os.unlink)(name)
    return number
