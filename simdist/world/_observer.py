"""Observers that watch worlds from inside: each world passes them its bus when it is made, and they listen there.

By default there are none: a world checks once, when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from simdist.kernel import Bus
from simdist.result import RunResult

__all__ = ["Observer", "WorldEnded", "observed_by", "observers"]


@dataclass(frozen=True, slots=True)
class WorldEnded:
    """Reported: a world has ended, with this result."""

    result: RunResult


class Observer(Protocol):
    """Listens to worlds. It must change nothing in them."""

    def world_begins(self, bus: Bus) -> None:
        """Listen to a new world, in which nothing has happened yet."""
        ...


_Any = TypeVar("_Any", bound=Observer)
_watching: list[Observer] = []


@contextmanager
def observed_by(observer: _Any) -> Iterator[_Any]:
    """Let `observer` watch every world that is made inside this context."""
    _watching.append(observer)
    try:
        yield observer
    finally:
        _watching.remove(observer)


def observers() -> tuple[Observer, ...]:
    """The observers of worlds that are made now."""
    return tuple(_watching)
