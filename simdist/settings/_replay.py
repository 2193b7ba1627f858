"""The line of Python that repeats a run: a call with all that determines the run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from simdist.cluster import Cluster
from simdist.faults import Fault
from simdist.values import plain

__all__ = ["ALWAYS", "call_text", "name_of"]

_LONGEST = 400  # letters of one argument
_MOST_ITEMS = 40  # of one container
_DEEPEST = 6
ALWAYS = ("world_size", "seed")
_T = TypeVar("_T")


class _Writer:
    """Writes values as Python would; `shortened` says that something was left out."""

    def __init__(self) -> None:
        self.shortened = False

    def write(self, value: object, depth: int = 0) -> str:
        """The value as a Python expression, within the limits."""
        if depth > _DEEPEST:
            return self._left_out()
        kind = type(value)
        if kind in (int, bool):
            return self._within(repr(value))
        if isinstance(value, Fault):
            ours = type(value).__module__.startswith("simdist.faults.")
            return f"simdist.faults.{value!r}" if ours else repr(value)
        if isinstance(value, Cluster):
            self.shortened |= not value.made_by  # its graph is not shown
            return value.made_by or self._within(repr(value))
        if kind is dict and isinstance(value, dict):
            items = [f"{self.write(k, depth + 1)}: {self.write(v, depth + 1)}" for k, v in self._first(value.items())]
            return self._within(f"{{{', '.join(items)}}}")
        if kind in (list, tuple) and isinstance(value, list | tuple):
            inside = ", ".join(self.write(item, depth + 1) for item in self._first(value))
            if depth == 0:  # an argument as a whole may be longer than `_LONGEST`
                return f"[{inside}]" if kind is list else f"({inside},)" if len(value) == 1 else f"({inside})"
            return self._within(f"[{inside}]" if kind is list else f"({inside},)" if len(value) == 1 else f"({inside})")
        if isinstance(value, functools.partial):
            parts = [name_of(value.func), *(self.write(each, depth + 1) for each in value.args)]
            parts += [f"{name}={self.write(each, depth + 1)}" for name, each in value.keywords.items()]
            return self._within(f"functools.partial({', '.join(parts)})")
        if isinstance(value, type) or hasattr(value, "__qualname__"):
            return name_of(value)
        if isinstance(value, str | bytes) and len(value) > _LONGEST:
            self.shortened = True
            value = value[:_LONGEST]
            return f"{value!r}..."
        return self._within(self._repr(value))

    def _first(self, items: Iterable[_T]) -> list[_T]:
        found = list(items)
        if len(found) > _MOST_ITEMS:
            self.shortened = True
        return found[:_MOST_ITEMS]

    def _repr(self, value: object) -> str:
        shape = getattr(value, "shape", None)
        if shape is not None and hasattr(value, "dtype"):
            elements = 1
            for size in shape:
                elements *= int(size)
            if elements > _MOST_ITEMS:  # a large tensor or array is not written out
                self.shortened = True
                return f"<{type(value).__name__} of shape {tuple(shape)}, {value.dtype}>"
        text = " ".join(repr(value).split())
        without = re.sub(r" at 0x[0-9a-f]+", "", text)  # it differs from run to run
        self.shortened |= without != text
        return plain(without, "")

    def _within(self, text: str) -> str:
        if len(text) <= _LONGEST:
            return text
        self.shortened = True
        return f"{text[:_LONGEST]}..."

    def _left_out(self) -> str:
        self.shortened = True
        return "..."


def call_text(
    function: str, fn: Callable[..., object], arguments: Mapping[str, object], defaults: Mapping[str, object]
) -> str:
    """`function(fn, name=value, ...)` with every argument that is not its default.

    Arguments that are too long, or that Python could not read back, are shortened, and a comment at the end names them.
    """
    writer = _Writer()
    short: list[str] = []
    parts = [_written(writer, "fn", fn, short)]
    for name, value in arguments.items():
        if name in ALWAYS or not _is_default(value, defaults.get(name)):
            parts.append(f"{name}={_written(writer, name, value, short)}")
    comment = f"  # shortened: {', '.join(short)}" if short else ""
    return f"{function}({', '.join(parts)}){comment}"


def name_of(fn: object) -> str:
    """The name under which a function or a class is defined."""
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def _written(writer: _Writer, name: str, value: object, short: list[str]) -> str:
    writer.shortened = False
    try:
        text = writer.write(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a user's __repr__ may raise anything
        writer.shortened = True
        text = f"<{type(value).__name__}>"
    if writer.shortened:
        short.append(name)
    return text


def _is_default(value: object, default: object) -> bool:
    """True if leaving the argument out means the same; objects of the user's classes are not compared."""
    if value is default:
        return True
    if isinstance(value, str | int | float) and type(value) is type(default):
        return value == default
    return isinstance(value, list | tuple | dict) and not value and default in ((), None)
