"""Files that `torch.save` writes: torch's writer for a path is C++, and nothing else shows when it has written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simdist.process import Patches, current_process, wrote_file

__all__ = ["install"]

_writer = vars(torch.serialization)["_open_zipfile_writer_file"]


def install(patches: Patches) -> None:
    """Note when a rank has saved."""
    patches.wrap(_writer, "__init__", _making)
    patches.wrap(_writer, "__exit__", _noting)


def _making(original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    @functools.wraps(original)
    def __init__(self: Any, name: str) -> None:
        made = current_process() is not None and not Path(name).exists()
        original(self, name)
        wrote_file(name, made=made)

    return __init__


def _noting(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def __exit__(self: Any, *error: object) -> object:
        done = original(self, *error)
        wrote_file(self.name)
        return done

    return __exit__
