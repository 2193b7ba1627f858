"""Those who watch worlds from inside: each world shows them its bus when it is made, and they listen there.

Nobody does unless asked to: a world looks once, when it is made, whether there is anyone.
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
    """Reported: a world is gone, with this result."""

    result: RunResult


class Observer(Protocol):
    """Listens to worlds. It must change nothing in them."""

    def world_begins(self, bus: Bus) -> None:
        """A world is there; nothing has happened in it yet."""
        ...


_Any = TypeVar("_Any", bound=Observer)
_watching: list[Observer] = []


@contextmanager
def observed_by(observer: _Any) -> Iterator[_Any]:
    """Have every world that is made inside watched by `observer`."""
    _watching.append(observer)
    try:
        yield observer
    finally:
        _watching.remove(observer)


def observers() -> tuple[Observer, ...]:
    """Who watches worlds that are made now."""
    return tuple(_watching)
