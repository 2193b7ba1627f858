"""Whether a dictionary has changed, read from the count that the interpreter keeps in it.

`PyDictObject.ma_version_tag` is its 4th word: a number that no dictionary of the interpreter had before, given
anew with each change. Python 3.14 no longer has it (PEP 699); there every reading is a new number, as after a change.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable
from typing import Protocol

from simdist.inside._facts import fact

__all__ = ["ChangeCount", "count_of_changes"]

_WORD = 3 * ctypes.sizeof(ctypes.c_void_p)


class ChangeCount(Protocol):
    """The `value` of a dictionary is another one after each change of its names or values."""

    @property
    def value(self) -> int: ...


class _Unknown:
    """Stands for the count where the interpreter has none."""

    _numbers = itertools.count(1)

    @property
    def value(self) -> int:
        return next(self._numbers)


def _count_in(space: dict[str, object]) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(space) + _WORD)


def _is_known() -> bool:
    """True if the word counts: with a change, not without."""
    space: dict[str, object] = {"one": 1}
    count = _count_in(space)
    steps: list[Callable[[], object]] = [
        space.copy,
        lambda: space.update(two=2),
        space.copy,
        lambda: space.update(two=3),
        lambda: space.pop("two"),
    ]
    seen = []
    for step in steps:
        step()
        seen.append(count.value)
    return [before != after for before, after in itertools.pairwise(seen)] == [True, False, True, True]


_counts = sys.version_info < (3, 14) and _is_known()
_unknown = _Unknown()


def count_of_changes(space: dict[str, object]) -> ChangeCount:
    """Return the count of a dictionary, to be read as long as the dictionary lives."""
    return _count_in(space) if _counts else _unknown


@fact(
    "python.dictionaries",
    what="the 4th word of a dictionary changes whenever the dictionary does, up to Python 3.13",
    source="CPython, Include/cpython/dictobject.h, PyDictObject.ma_version_tag; PEP 699",
    seen="3.11 to 3.13",
    feature="a hand-over to a forked child compares all names of the program's modules",
)
def _count_is_known() -> str:
    return "" if _counts or sys.version_info >= (3, 14) else "something else is there"
