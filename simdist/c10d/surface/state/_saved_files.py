"""Files that `torch.save` writes: torch's writer for a path is C++, and nothing else shows when it has written.

It completes its file whatever happens, also where a rank is unwound that was killed while it saved. Then its descriptor
is what keeps that from the file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from simdist.process import Patches, current_process, is_cut_off, original, wrote_file

__all__ = ["install"]

_DESCRIPTORS = "/proc/self/fd"
_writer = vars(torch.serialization)["_open_zipfile_writer_file"]


def install(patches: Patches) -> None:
    """Note when a rank has saved."""
    patches.wrap(_writer, "__init__", _making)
    patches.wrap(_writer, "__exit__", _noting)


def _making(original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    @functools.wraps(original)
    def __init__(self: Any, name: str) -> None:
        if current_process() is None:
            original(self, name)
            return
        made = not Path(name).exists()
        before = _descriptors_of(name)
        original(self, name)
        self._simdist_descriptors = _descriptors_of(name) - before
        wrote_file(name, made=made)

    return __init__


def _noting(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def __exit__(self: Any, *error: object) -> object:
        if is_cut_off():
            _lose(vars(self).get("_simdist_descriptors", ()))
        done = original(self, *error)
        wrote_file(self.name)
        return done

    return __exit__


def _descriptors_of(path: str) -> set[int]:
    """By what numbers the host process has a file open; none where the system does not show it."""
    try:
        file = original(os.stat)(path)
        return {number for number in map(int, original(os.listdir)(_DESCRIPTORS)) if _leads_to(number, file)}
    except OSError:
        return set()


def _leads_to(descriptor: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(original(os.fstat)(descriptor), file)
    except OSError:  # the one that listed them
        return False


def _lose(descriptors: Iterable[int]) -> None:
    """Let what is still written to them get lost."""
    null = original(os.open)(os.devnull, os.O_WRONLY)
    for number in descriptors:
        os.dup2(null, number, inheritable=False)
    os.close(null)
