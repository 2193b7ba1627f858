"""Those who watch worlds from inside: they see each event when it is made, on the thread that makes it.

Nobody does unless asked to: a world looks once, when it is made, whether there is anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from simdist.kernel import Simulation
    from simdist.process import SimProcess
    from simdist.result import RunResult

__all__ = ["Observer", "observed_by", "observers"]

_Any = TypeVar("_Any", bound="Observer")
_watching: list[Observer] = []


class Observer:
    """Overrides what it wants to know. It must change nothing in the world."""

    def world_begins(self, simulation: Simulation) -> None:
        """A world is there; nothing has happened in it yet."""

    def rank_begins(self, process: SimProcess) -> None:
        """A rank is about to call the user's function; called on the rank's own thread."""

    def world_ends(self, result: RunResult) -> None:
        """The world ended with this result."""


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
