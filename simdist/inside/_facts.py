"""Facts: what simdist relies on inside Python, the system and torch, though it is not guaranteed.

Each fact says where it comes from, in which versions it was seen, and which feature is off without it. Its probe checks
whether it holds in the installed Python and torch. `simdist doctor` and the test suite run all probes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Fact", "fact", "facts"]

Probe = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that must be as simdist expects it."""

    name: str  # its package and itself: "python.functions"
    what: str  # a sentence
    source: str  # where it is written: a file of CPython, torch or the system
    seen: str  # the versions in which it was found to hold
    feature: str  # what does not work without it
    probe: Probe  # what is different here; empty if it holds

    def difference(self) -> str:
        """What is different here, empty if the fact holds. A probe that raises has found a difference."""
        try:
            return self.probe()
        except Exception as error:  # an unknown version may raise anything
            return f"{type(error).__name__}: {error}"


_ROOMS = ("simdist.inside.python", "simdist.inside.system", "simdist.inside.torch")
_known: dict[str, Fact] = {}


def fact(name: str, *, what: str, source: str, seen: str, feature: str) -> Callable[[Probe], Probe]:
    """Register the decorated function as the probe of a fact."""

    def register(probe: Probe) -> Probe:
        if name in _known:
            raise ValueError(f"there are two facts named {name}")
        _known[name] = Fact(name, what, source, seen, feature, probe)
        return probe

    return register


def facts() -> list[Fact]:
    """All facts, by name. Loads torch."""
    for room in _ROOMS:
        importlib.import_module(room)
    return [_known[name] for name in sorted(_known)]
