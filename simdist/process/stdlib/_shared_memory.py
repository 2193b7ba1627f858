"""Blocks of `multiprocessing.shared_memory` that a rank makes: real ones.

A real process has a helper process, the resource tracker, which removes the blocks that are left when its processes
have ended. Ranks have none: blocks that they leave are removed when their world ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING

from simdist.process._runtime import Extra, Patches, Replacement, current_process, current_runtime

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["install"]

_BLOCKS: Extra[dict[str, None]] = Extra("names of shared memory")  # of those that exist
_tracker: ModuleType = resource_tracker  # has what the stubs leave out


def install(patches: Patches) -> None:
    """Let ranks have no resource tracker."""
    patches.redirect(_REPLACEMENTS)


def _ensure_running(
    original: Callable[[resource_tracker.ResourceTracker], None],
) -> Callable[[resource_tracker.ResourceTracker], None]:
    @functools.wraps(original)
    def ensure_running(self: resource_tracker.ResourceTracker) -> None:
        if current_process() is None:
            original(self)

    return ensure_running


def _send(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def send(self: resource_tracker.ResourceTracker, command: str, name: str, kind: str) -> None:
        runtime = current_runtime()
        if runtime is None:
            original(self, command, name, kind)
        elif kind == "shared_memory":
            blocks = runtime.extras.get(_BLOCKS)
            if blocks is None:
                blocks = runtime.extras[_BLOCKS] = {}
                runtime.patches.on_undo(functools.partial(_remove, blocks))
            if command == "REGISTER":
                blocks[name] = None
            else:
                blocks.pop(name, None)

    return send


def _remove(blocks: dict[str, None]) -> None:
    for name in blocks:
        with contextlib.suppress(FileNotFoundError):
            _tracker._CLEANUP_FUNCS["shared_memory"](name)


_REPLACEMENTS = (
    Replacement(resource_tracker.ResourceTracker, "ensure_running", _ensure_running),
    Replacement(resource_tracker.ResourceTracker, "_send", _send),
)
