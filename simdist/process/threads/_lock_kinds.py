"""The lock types of C, as they are outside worlds."""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]  # of C
import _thread
import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "PLAIN", "RECURSIVE", "SHARED", "Kind", "PlainLock", "RecursiveLock", "SharedLock", "real_methods"]

PlainLock: Any = _thread.LockType
RecursiveLock: Any = _thread.RLock
SharedLock: Any = _multiprocessing.SemLock  # between processes
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A type of lock, as it is outside worlds."""

    name: str
    type: type
    make: Callable[[Any], object]  # another one like a given one
    take: Callable[..., bool]
    give: Callable[[object], None]
    owned: Callable[[object], bool] | None  # whether the calling thread has it, if the lock knows
    reset: Callable[[object], None]  # free it, no matter who has it

    def is_free_again(self, lock: object) -> bool:
        """True if a lock that was released once is free: an RLock may have been taken several times."""
        return self.owned is None or not self.owned(lock)


def _make_plain(like: object) -> object:
    return _thread.allocate_lock()


def _make_recursive(like: object) -> object:
    return _thread.RLock()


def _make_shared(like: Any) -> object:
    name = f"/simdist-{os.getpid()}-{next(_numbers)}"
    return SharedLock(like.kind, like.maxvalue, like.maxvalue, name, True)  # True: unlink the name


def _free_shared(lock: object) -> None:
    with contextlib.suppress(AssertionError):  # the thread that holds it has ended
        SHARED.give(lock)


PLAIN = Kind("Lock", PlainLock, _make_plain, PlainLock.acquire, PlainLock.release, None, PlainLock._at_fork_reinit)
RECURSIVE = Kind(
    "RLock",
    RecursiveLock,
    _make_recursive,
    RecursiveLock.acquire,
    RecursiveLock.release,
    RecursiveLock._is_owned,
    RecursiveLock._at_fork_reinit,
)
SHARED = Kind(
    "multiprocessing lock",
    SharedLock,
    _make_shared,
    SharedLock.acquire,
    SharedLock.release,
    SharedLock._is_mine,
    _free_shared,
)
KINDS = (PLAIN, RECURSIVE, SHARED)


def real_methods(lock: object) -> tuple[Callable[..., bool], Callable[[], None]]:
    """`acquire` and `release` of an RLock as they are outside worlds, for one that guards what all ranks share."""
    return RECURSIVE.take.__get__(lock), RECURSIVE.give.__get__(lock)
