"""The content of folders on a disk, in the same order on every machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from simdist.files._present import Make, opened, spot

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath

__all__ = ["LISTINGS"]


class _Entries:
    """The entries of `os.scandir`, sorted by name: the order of real folders differs between machines."""

    def __init__(self, path: StrOrBytesPath | int, found: Any) -> None:
        with found:
            entries = {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}
        names = _seen(path, list(entries)) if all(isinstance(name, str) for name in entries) else entries
        self._entries: Iterator[object] = iter([entries[name] for name in names])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> object:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self._entries = iter(())


def _is_here(path: StrOrBytesPath | int) -> bool:
    return opened(path) is not None if isinstance(path, int) else spot(path, follow=True) is not None


def _seen(path: StrOrBytesPath | int, names: list[str]) -> list[str]:
    """The names in a folder that the rank's host sees."""
    found = None if isinstance(path, int) else spot(path, follow=True)
    if found is None or found.disk.clients is None:
        return names
    return found.disk.clients.listed(found.process, found.place, names)


def _look(path: StrOrBytesPath | int) -> None:
    """Count a listing as a look at all files below: an entry shows its file's size."""
    if isinstance(path, int):
        there = opened(path)
        disk, place = (None, "") if there is None else (there[0], there[1].path)
    else:
        found = spot(path, follow=True)
        disk, place = (None, "") if found is None else (found.disk, found.place)
    if disk is not None and disk.looks is not None:
        disk.looks.below(disk.real(place).rstrip("/"))


def _tidied(path: StrOrBytesPath | int) -> bool:
    """True if the folder is on a disk; first removes silly names that no process has open any more."""
    found = None if isinstance(path, int) else spot(path, follow=True)
    if found is not None:
        found.disk.forget_closed()
    return found is not None or _is_here(path)


def _scandir(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def scandir(path: StrOrBytesPath | int = ".") -> object:
        if not _tidied(path):
            return original(path)
        _look(path)
        return _Entries(path, original(path))

    return scandir


def _listdir(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    @functools.wraps(original)
    def listdir(path: StrOrBytesPath | int = ".") -> list[str]:
        return _seen(path, sorted(original(path))) if _tidied(path) else original(path)

    return listdir


LISTINGS: tuple[tuple[str, Make], ...] = (("scandir", _scandir), ("listdir", _listdir))
"""The replacements of functions of `os` that list a folder, by name."""
