"""Objects that are remembered, and not kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

__all__ = ["Remembered"]

_T = TypeVar("_T")
_FEW = 64


class Remembered(Generic[_T]):
    """Objects in the order in which they were added, as long as something else holds them."""

    __slots__ = ("_limit", "_references")

    def __init__(self) -> None:
        self._references: list[ref[_T]] = []
        self._limit = _FEW

    def add(self, thing: _T) -> None:
        """Remember an object. Hot: the list is cleaned only when it has grown to twice its size."""
        self._references.append(ref(thing))
        if len(self._references) > self._limit:
            self._references = [each for each in self._references if each() is not None]
            self._limit = max(_FEW, 2 * len(self._references))

    def __iter__(self) -> Iterator[_T]:
        for each in self._references:
            thing = each()
            if thing is not None:
                yield thing
