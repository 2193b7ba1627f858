"""Files that `torch.save` writes: torch's writer for a path is C++, so only its methods show when it has written.

The writer always completes its file, even when a rank is unwound that was killed during the save. In that case its
descriptor is redirected, so that the rest does not reach the file.
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
    """Report when a rank has saved."""
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
    """Return the descriptors with which the host process has a file open; none if the system does not show them."""
    try:
        file = original(os.stat)(path)
        return {number for number in map(int, original(os.listdir)(_DESCRIPTORS)) if _leads_to(number, file)}
    except OSError:
        return set()


def _leads_to(descriptor: int, file: os.stat_result) -> bool:
    try:
        return os.path.samestat(original(os.fstat)(descriptor), file)
    except OSError:  # the descriptor that `listdir` used
        return False


def _lose(descriptors: Iterable[int]) -> None:
    """Redirect descriptors to /dev/null, so that further writes are lost."""
    null = original(os.open)(os.devnull, os.O_WRONLY)
    for number in descriptors:
        os.dup2(null, number, inheritable=False)
    os.close(null)
