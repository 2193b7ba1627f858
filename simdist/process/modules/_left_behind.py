"""What ranks leave in state that all of a process share and nothing keeps apart, reported at the world's end.

Lists of the interpreter are compared with what they held when the world began, and get that back. A change for whose
undoing Python has no function is reported when a rank makes it. Both are in `RunResult.shared_state`.
"""

from __future__ import annotations

import abc
import codecs
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

from simdist.frames import is_our_file, is_ours, is_user_file
from simdist.process._reporting import report, reporting
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime
from simdist.process._when_imported import Finder
from simdist.process.modules._fork_copies import is_users
from simdist.process.stdlib._collector import host_froze

__all__ = ["LeftBehind", "belongs_to_library", "install"]

_K = TypeVar("_K", bound=type)
_TABLES: tuple[tuple[str, Callable[[], list[Any]]], ...] = (
    ("sys.path", lambda: sys.path),
    ("sys.meta_path", lambda: sys.meta_path),
    ("sys.path_hooks", lambda: sys.path_hooks),
    ("gc.callbacks", lambda: gc.callbacks),
)


class LeftBehind:
    """The lists as they were when the world began, and changes that can't be taken back."""

    def __init__(self) -> None:
        self._tables = [(name, table(), list(table())) for name, table in _TABLES]
        self.stays: dict[str, None] = {}

    def changes(self) -> tuple[str, ...]:
        """What ranks have changed so far, in words."""
        return (*(f"{name}, put back when the world ended" for name, _, _ in self._changed()), *self.stays)

    def restore(self) -> None:
        """Put back what the tables held."""
        for name, table, before in self._changed():
            table[:] = before + [each for each in table if each not in before and _stays(name, each)]

    def _changed(self) -> Iterator[tuple[str, list[Any], list[object]]]:
        for name, table, before in self._tables:
            now = [each for each in table if each in before or not (type(each) is Finder or _stays(name, each))]
            if table != before and now != before:
                yield name, table, before


def _stays(name: str, each: object) -> bool:
    return name == "sys.meta_path" and belongs_to_library(each)


def belongs_to_library(finder: object, isolates: Callable[[str], bool] | None = None) -> bool:
    """True for a finder that an installed module, which stays imported, has put there: it does so only once."""
    kind = finder if isinstance(finder, type) else type(finder)
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or is_our_file(file) or is_user_file(file):
        return False
    if isolates is not None and isolates(kind.__module__):
        return False
    return getattr(module, kind.__name__, None) is kind


def _freezing(original: Callable[[], None]) -> Callable[[], None]:
    """For `gc.freeze`, which freezes all objects of the process, the host's too."""

    @functools.wraps(original)
    def freeze() -> None:
        runtime = current_runtime()
        if runtime is not None:
            report("objects frozen by gc.freeze", sys._getframe(1), "put back when the world ended")
            if not host_froze():
                runtime.patches.on_undo(gc.unfreeze)
        original()

    return freeze


def _registering(original: Callable[[abc.ABCMeta, _K], _K]) -> Callable[[abc.ABCMeta, _K], _K]:
    """For abstract classes: report that a shared class is registered with a shared one; not for the user's own."""

    @functools.wraps(original)
    def register(cls: abc.ABCMeta, subclass: _K) -> _K:
        frame: FrameType | None = None if current_process() is None else sys._getframe(1)
        while frame is not None and is_ours(frame):
            frame = frame.f_back
        reported = frame is not None and is_user_file(frame.f_code.co_filename)
        if reported and isinstance(subclass, type) and not is_users(cls) and not is_users(subclass):
            report(f"{subclass.__name__} as a kind of {cls.__name__}", frame, "which stays")
        return original(cls, subclass)

    return register


_REPLACEMENTS = (
    Replacement(codecs, "register_error", reporting("the handler of coding errors")),
    Replacement(codecs, "register", reporting("a search function for codecs")),
    Replacement(sys, "addaudithook", reporting("an audit hook")),
    Replacement(gc, "freeze", _freezing),
    Replacement(abc.ABCMeta, "register", _registering),
)


def install(patches: Patches) -> None:
    """Report changes that can't be taken back."""
    patches.redirect(_REPLACEMENTS)
