"""The surroundings of a program: folders and files, and when garbage is collected."""

from __future__ import annotations

import builtins
import functools
import gc
import glob
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from simdist.determinism._recording import Seen
from simdist.frames import find_installed, is_user_file, user_frame
from simdist.process import current_process

__all__ = ["looked_at", "shaken"]

_LATER = 100  # factor on the number of objects until the collector runs


@contextmanager
def shaken() -> Iterator[None]:
    """A context with folders in reverse order and garbage collected much later: neither order is guaranteed.

    Folders of installed packages keep theirs: what a library finds in its own is not the program's.
    """
    find_installed()  # it lists folders itself
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0] * _LATER, *thresholds[1:])
    try:
        os_scandir = os.scandir
        with ExitStack() as stack:
            stack.enter_context(_replaced(os, "listdir", _last_first(list)))
            stack.enter_context(_replaced(os, "scandir", _last_first(_Entries)))
            globber: Any = getattr(glob, "_StringGlobber", None)
            if getattr(globber, "scandir", None) is os_scandir:  # Python 3.13 has taken it early
                stack.enter_context(_replaced(globber, "scandir", lambda original: staticmethod(os.scandir)))
            yield
    finally:
        gc.set_threshold(*thresholds)


_Make = Callable[[Callable[..., Any]], object]


def _last_first(kind: Callable[[list[Any]], object]) -> _Make:
    def make(original: Callable[..., Iterable[Any]]) -> Callable[..., object]:
        @functools.wraps(original)
        def look(*args: object, **kwargs: object) -> object:
            found = list(original(*args, **kwargs))
            folder = str(args[0]) if args else "."
            return kind(found[::-1] if is_user_file(folder + os.sep) else found)

        return look

    return make


class _Entries:
    """The entries of a folder; stands in for the iterator of `os.scandir`."""

    def __init__(self, entries: list[object]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[object]:
        return self._entries

    def __next__(self) -> object:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: nothing is open."""


@contextmanager
def looked_at(seen: dict[int, list[Seen]]) -> Iterator[None]:
    """Note which files the user's code finds, and which it does not, for each rank.

    Python's own search for installed packages (`importlib.metadata`) is left out: it keeps what it has found. So is the
    making of a folder with `exist_ok`: the code that asks for it goes on in the same way.
    """
    importlib.import_module("simdist.files")  # first: it must wrap Python's own `open`, not the one set here
    find_installed()
    with ExitStack() as stack:
        for name in ("stat", "lstat", "mkdir", "remove", "unlink", "rename", "replace"):
            stack.enter_context(_replaced(os, name, functools.partial(_noting, seen, "file", _happened)))
        stack.enter_context(_replaced(os, "listdir", functools.partial(_noting, seen, "folder", _names)))
        for owner in (builtins, io):
            stack.enter_context(_replaced(owner, "open", functools.partial(_noting, seen, "file", _happened)))
        yield


def _happened(result: object) -> str:
    return "there"


def _names(result: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, result)))


def _changes_nothing(frame: FrameType | None, user: FrameType) -> bool:
    """True if Python's search for installed packages, or the making of a folder that may exist, is between the two."""
    while frame is not None and frame is not user:
        if frame.f_globals.get("__name__") == "importlib.metadata":
            return True
        if frame.f_code.co_name in ("makedirs", "mkdir") and frame.f_locals.get("exist_ok"):
            return True
        frame = frame.f_back
    return False


def _noting(
    seen: dict[int, list[Seen]], kind: str, reported: Callable[[Any], str], original: Callable[..., Any]
) -> Callable[..., object]:
    @functools.wraps(original)
    def look(*args: object, **kwargs: object) -> object:
        caller = sys._getframe(1)
        frame = user_frame(caller)
        if frame is None or _changes_nothing(caller, frame):
            return original(*args, **kwargs)
        site = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        process = current_process()
        notes = seen.setdefault(-1 if process is None else process.rank, [])
        try:
            result = original(*args, **kwargs)
        except OSError as error:
            notes.append(Seen(kind, site, type(error).__name__))
            raise
        notes.append(Seen(kind, site, reported(result)))
        return result

    return look


@contextmanager
def _replaced(owner: object, name: str, make: _Make) -> Iterator[None]:
    original, kept = getattr(owner, name), vars(owner)[name]  # the second is a static method's own object
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, kept)
