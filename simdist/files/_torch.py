"""`torch.save(path)`: its C++ writer gets a file object, so that its writes are noticed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from simdist.files._present import spot
from simdist.process import Patches

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath

__all__ = ["install"]

_serialization: Any = torch.serialization


def install(patches: Patches) -> None:
    """Let ranks save to the disk."""
    patches.wrap(_serialization, "_open_zipfile_writer", _writer)


def _writer(original: Callable[..., Any]) -> Callable[..., object]:
    @functools.wraps(original)
    def open_writer(name_or_buffer: Any) -> object:
        is_path = _serialization._is_path(name_or_buffer)
        if not is_path or spot(name_or_buffer, follow=True) is None:
            return original(name_or_buffer)
        return _Writer(original, name_or_buffer)

    return open_writer


class _Writer:
    """The writer over a buffered file; like torch's own, it is buffered, and closes the file at its end."""

    def __init__(self, original: Callable[..., Any], name: StrOrBytesPath) -> None:
        self._original = original
        self._name = name

    def __enter__(self) -> object:
        self._file = open(self._name, "wb")
        self._inner = self._original(self._file)
        return self._inner.__enter__()

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)
        self._file.close()
