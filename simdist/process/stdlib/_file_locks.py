"""Locks on files, by `fcntl.flock` and `fcntl.lockf`: a rank that waits for one lets the others go on.

The locks are the system's, so processes outside of the run take part, and closing a file gives its lock up. A rank that
finds a file locked asks again in virtual time until it gets the lock. A process that ends, or is killed, gives up its
locks although its files stay open until the world ends.

For the system a lock of `lockf` belongs to a whole process, and all ranks are in one. So a rank's belongs to the open
file instead (`F_OFD_SETLK`), where the system has such locks; elsewhere these locks keep no rank out.

In doubt: a rank that opens a file twice and takes both of its locks by `lockf` waits for itself. Locks that it takes by
`fcntl.fcntl` are those of all ranks, and it waits for them in real time.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from simdist.inside.python import original
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["install"]

_Lock = Callable[..., None]
_SET = getattr(fcntl, "F_OFD_SETLK", None)
_OF_OPEN_FILE = "hhqqi4x"  # Linux's `struct flock`: kind, whence, start, length and pid


class _Held:
    """The locks of all processes of a world, by the number of the open file: who has it, and what unlocks it."""

    def __init__(self) -> None:
        self._by_number: dict[int, tuple[SimProcess, Callable[[], object]]] = {}

    def note(self, number: int, process: SimProcess, give: Callable[[], object]) -> None:
        """Note who has locked an open file last: its number may have been another's before."""
        self._by_number[number] = process, give
        process.end_listeners[self._give_up] = None

    def _give_up(self, process: SimProcess) -> None:
        for number, (holder, give) in list(self._by_number.items()):
            if holder is process:
                del self._by_number[number]
                with contextlib.suppress(OSError):  # the program has closed it
                    give()


def _take(
    process: SimProcess, number: int, take: Callable[[], object], give: Callable[[], object], waits: bool
) -> None:
    """Take a lock without waiting, again and again until it is there."""
    while True:
        try:
            take()
            break
        except (BlockingIOError, PermissionError):
            if not waits:
                raise
        process.simulation.ask()
        if process.pending:
            process.handle_signals()
        process.drain()
    runtime = current_runtime()
    if runtime is not None:
        runtime.extras.setdefault(_Held, _Held()).note(number, process, give)


def _is_descriptor(fd: object) -> bool:
    return isinstance(fd, int) or hasattr(fd, "fileno")


def _flocking(really: _Lock) -> _Lock:
    @functools.wraps(really)
    def flock(fd: FileDescriptorLike, operation: int, /) -> None:
        process = current_process()
        if process is None or not _is_descriptor(fd) or not operation & (fcntl.LOCK_SH | fcntl.LOCK_EX):
            really(fd, operation)
            return
        number = fd if isinstance(fd, int) else fd.fileno()
        take = partial(really, number, operation | fcntl.LOCK_NB)
        _take(process, number, take, partial(really, number, fcntl.LOCK_UN), not operation & fcntl.LOCK_NB)

    return flock


def _locking(really: _Lock) -> _Lock:
    @functools.wraps(really)
    def lockf(fd: FileDescriptorLike, cmd: int, len: int = 0, start: int = 0, whence: int = 0, /) -> None:
        process = current_process()
        kinds = {fcntl.LOCK_UN: fcntl.F_UNLCK, fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK}
        kind = kinds.get(cmd & ~fcntl.LOCK_NB)
        if process is None or kind is None or _SET is None or not _is_descriptor(fd):
            really(fd, cmd, len, start, whence)
            return
        number = fd if isinstance(fd, int) else fd.fileno()
        change = partial(original(fcntl.fcntl), number, _SET)
        take = partial(change, struct.pack(_OF_OPEN_FILE, kind, whence, start, len, 0))
        give = partial(change, struct.pack(_OF_OPEN_FILE, fcntl.F_UNLCK, 0, 0, 0, 0))
        if kind == fcntl.F_UNLCK:
            take()
        else:
            _take(process, number, take, give, not cmd & fcntl.LOCK_NB)

    return lockf


_REPLACEMENTS = () if fcntl is None else (Replacement(fcntl, "flock", _flocking), Replacement(fcntl, "lockf", _locking))


def install(patches: Patches) -> None:
    """Let ranks wait for locks on files in virtual time."""
    patches.redirect(_REPLACEMENTS)
