"""What ranks find in a folder on a disk, in one order on every machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from simdist.files._present import opened, spot

__all__ = ["LISTINGS"]

_Make = Callable[[Any], Any]


class _Entries:
    """What `os.scandir` gives, by name: the order of real folders differs from one machine to the next."""

    def __init__(self, found: Any) -> None:
        with found:
            self._entries: Iterator[Any] = iter(sorted(found, key=lambda entry: entry.name))

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give nothing more."""
        self._entries = iter(())


def _is_here(path: Any) -> bool:
    return opened(path) is not None if isinstance(path, int) else spot(path, follow=True) is not None


def _scandir(original: Any) -> Any:
    @functools.wraps(original)
    def scandir(path: Any = ".") -> Any:
        return _Entries(original(path)) if _is_here(path) else original(path)

    return scandir


def _listdir(original: Any) -> Any:
    @functools.wraps(original)
    def listdir(path: Any = ".") -> Any:
        return sorted(original(path)) if _is_here(path) else original(path)

    return listdir


LISTINGS: tuple[tuple[str, _Make], ...] = (("scandir", _scandir), ("listdir", _listdir))
"""What stands in for functions of `os`, by name."""
