"""What the methods of locks and queues do on tasks, no matter which code made the object, or when."""

from __future__ import annotations

import _queue
import _thread
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from simdist.process._runtime import Make, Patches, Replacement
from simdist.process.threads._lock_kinds import PLAIN, RECURSIVE, SHARED, Kind, PlainLock, RecursiveLock, SharedLock
from simdist.process.threads._locks import Locks

if TYPE_CHECKING:
    from simdist.process._process import SimProcess

__all__ = ["begin", "bind_again", "install", "share_between_processes", "taken_early"]

_T = TypeVar("_T")
_present: Locks | None = None
_get_ident = _thread.get_ident


def share_between_processes(lock: object, rank: SimProcess) -> None:
    """Note a lock of `multiprocessing` that a rank made: it is one lock for the rank and its children."""
    if _present is not None:
        _present.share(lock, rank)


def _acquire_of(kind: Kind) -> Make:
    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def acquire(lock: object, blocking: bool = True, timeout: float = -1) -> bool:
            locks = _present
            if locks is None or _get_ident() != locks.simulation.current_ident:
                return bool(original(lock, blocking, timeout))
            return locks.acquire(kind, lock, blocking, timeout)

        return acquire

    return make


def _acquire_shared(original: Callable[..., bool]) -> Callable[..., bool]:
    def acquire(lock: object, block: bool = True, timeout: float | None = None) -> bool:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            return bool(original(lock, block, timeout))
        limit_s = -1 if timeout is None or not block else max(0, timeout)
        return locks.acquire(SHARED, lock, bool(block), limit_s)

    return acquire


def _enter_of(kind: Kind) -> Make:
    def make(original: Callable[[object], bool]) -> Callable[[object], bool]:
        def __enter__(lock: object) -> bool:
            locks = _present
            if locks is None or _get_ident() != locks.simulation.current_ident:
                return bool(original(lock))
            return locks.acquire(kind, lock, True, -1)

        return __enter__

    return make


def _release_of(kind: Kind) -> Make:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def release(lock: object, *exception: object) -> None:
            locks = _present
            if locks is None or _get_ident() != locks.simulation.current_ident:
                original(lock, *exception)
            else:
                locks.release(kind, lock)

        return release

    return make


def _locked(original: Callable[[object], bool]) -> Callable[[object], bool]:
    def locked(lock: object) -> bool:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            return bool(original(lock))
        return locks.locked(lock, original)

    return locked


def _asked(original: Callable[[object], _T]) -> Callable[[object], _T]:
    """For methods of an RLock that say what the calling thread holds."""

    def ask(lock: object) -> _T:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            return original(lock)
        return original(locks.meant(lock))

    return ask


def _release_save(original: Callable[[object], _T]) -> Callable[[object], _T]:
    def _release_save(lock: object) -> _T:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            return original(lock)
        return locks.give_back_all(lock, original)

    return _release_save


def _acquire_restore(original: Callable[[object, _T], None]) -> Callable[[object, _T], None]:
    def _acquire_restore(lock: object, state: _T) -> None:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            original(lock, state)
        else:
            locks.take_all(lock, state, original)

    return _acquire_restore


def _get(original: Callable[..., _T]) -> Callable[..., _T]:
    def get(queue: object, block: bool = True, timeout: float | None = None) -> _T:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            return original(queue, block, timeout)
        if block:
            locks.offer(locks.running())
        try:
            item = original(queue, False)
        except _queue.Empty:
            if not block:
                raise
        else:
            locks.report(locks.running(), queue, gives=False)
            return item
        if timeout is not None and timeout < 0:
            return original(queue, block, timeout)
        return locks.get(queue, timeout, original)

    return get


def _put(original: Callable[[object, object], None]) -> Callable[..., None]:
    def put(queue: object, item: object, block: bool = True, timeout: float | None = None) -> None:
        locks = _present
        if locks is None or _get_ident() != locks.simulation.current_ident:
            original(queue, item)
        else:
            locks.offer(locks.running())
            original(queue, item)
            locks.put(queue)

    return put


def _put_nowait(original: Callable[[object, object], None]) -> Callable[..., None]:
    return _put(original)


_METHODS: tuple[tuple[type, dict[str, Make]], ...] = (
    (
        PlainLock,
        {
            **dict.fromkeys(("acquire", "acquire_lock"), _acquire_of(PLAIN)),
            "__enter__": _enter_of(PLAIN),
            **dict.fromkeys(("release", "release_lock", "__exit__"), _release_of(PLAIN)),
            **dict.fromkeys(("locked", "locked_lock"), _locked),
        },
    ),
    (
        RecursiveLock,
        {
            "acquire": _acquire_of(RECURSIVE),
            "__enter__": _enter_of(RECURSIVE),
            **dict.fromkeys(("release", "__exit__"), _release_of(RECURSIVE)),
            "locked": _locked,
            **dict.fromkeys(("_is_owned", "_recursion_count"), _asked),
            "_release_save": _release_save,
            "_acquire_restore": _acquire_restore,
        },
    ),
    (
        SharedLock,
        {
            "acquire": _acquire_shared,
            "__enter__": _enter_of(SHARED),
            **dict.fromkeys(("release", "__exit__"), _release_of(SHARED)),
            **dict.fromkeys(("_is_mine", "_count"), _asked),
        },
    ),
    (_queue.SimpleQueue, {"get": _get, "put": _put, "put_nowait": _put_nowait}),
)

_BOUND = ("acquire", "release", "_release_save", "_acquire_restore", "_is_owned")


def _with_new_methods(original: Callable[..., _T]) -> Callable[..., _T]:
    """For a condition variable, which keeps bound methods of its lock: rebind those from before the world."""

    def method(condition: Any, *args: object, **kwargs: object) -> _T:  # a `threading.Condition`
        own = vars(condition)
        if _present is not None and isinstance(own.get("acquire"), types.BuiltinMethodType):
            for name in _BOUND:
                if name in own:
                    setattr(condition, name, getattr(condition._lock, name))
        return original(condition, *args, **kwargs)

    return method


def _taken(original: Any) -> Callable[..., object]:
    def method(*args: object, **kwargs: object) -> object:
        return getattr(original.__self__, original.__name__)(*args, **kwargs)

    return method


def taken_early(method: types.BuiltinMethodType) -> Make | None:
    """Return the maker of the replacement of a lock's or queue's method taken before the world began, or None."""
    return _taken if method.__name__ in _TAKEN.get(type(method.__self__), ()) else None


_TAKEN: dict[type, dict[str, Make]] = dict(_METHODS)
_REPLACEMENTS = (
    Replacement(threading.Condition, "wait", _with_new_methods),
    Replacement(threading.Condition, "notify", _with_new_methods),
)


def begin(patches: Patches, locks: Locks) -> None:
    """Set the locks of the world that begins; called before `install`, which `bind_again` follows."""
    global _present
    _present = locks
    patches.on_undo(_uninstall)
    patches.on_undo(bind_again)


def install(patches: Patches) -> None:
    """Let tasks wait in virtual time."""
    for owner, methods in _METHODS:
        patches.wrap_all_in_type(owner, methods)
    patches.redirect(_REPLACEMENTS)


def bind_again() -> None:
    """Rebind the methods that locks of `multiprocessing` keep; it has a list of these locks."""
    if "multiprocessing.synchronize" in sys.modules:
        registry: Any = vars(sys.modules["multiprocessing.util"])["_afterfork_registry"]
        for reference in list(registry.data.values()):
            each = reference()
            if isinstance(getattr(each, "_semlock", None), SharedLock):
                each._make_methods()


def _uninstall() -> None:
    global _present
    locks, _present = _present, None
    if locks is not None:
        locks.close()
