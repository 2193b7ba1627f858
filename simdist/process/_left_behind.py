"""What ranks leave in state that all of a process share and nothing keeps apart: found at the world's end, and told.

Lists of the interpreter are compared with what they held when the world began, and get that back. What can't be taken
back, for Python has no function for it, is told when a rank does it. Either stands in `RunResult.shared_state`.
"""

from __future__ import annotations

import codecs
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

from simdist.frames import user_line
from simdist.process._libraries import Finder
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime

__all__ = ["LeftBehind", "install"]

_TABLES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("sys.path", lambda: sys.path),
    ("sys.meta_path", lambda: sys.meta_path),
    ("sys.path_hooks", lambda: sys.path_hooks),
    ("gc.callbacks", lambda: gc.callbacks),
)


class LeftBehind:
    """The lists as they were, and what was done that stays."""

    def __init__(self) -> None:
        self._tables = [(name, table(), list(table())) for name, table in _TABLES]
        self.stays: dict[str, None] = {}

    def changes(self) -> tuple[str, ...]:
        """What ranks have changed so far, in words."""
        return (*(f"{name}, put back when the world ended" for name, _, _ in self._changed()), *self.stays)

    def restore(self) -> None:
        """Put back what the tables held."""
        for _, table, before in self._changed():
            table[:] = before

    def _changed(self) -> Iterator[tuple[str, list[Any], list[Any]]]:
        for name, table, before in self._tables:
            if table != before and _without_ours(table) != before:
                yield name, table, before


def _without_ours(table: list[Any]) -> list[Any]:
    return [each for each in table if type(each) is not Finder]


def _telling(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def do(*args: Any) -> Any:
            runtime, process = current_runtime(), current_process()
            if runtime is not None and process is not None:
                name = f" {args[0]!r}" if args and isinstance(args[0], str) else ""
                line = user_line(sys._getframe(1))
                runtime.left_behind.stays[f"{what}{name}, set by rank {process.rank}{line}, which stays"] = None
            return original(*args)

        return do

    return make


_REPLACEMENTS = (
    Replacement(codecs, "register_error", _telling("the handler of coding errors")),
    Replacement(codecs, "register", _telling("a search function for codecs")),
)


def install(patches: Patches) -> None:
    """Notice what can't be taken back."""
    patches.redirect(_REPLACEMENTS)
