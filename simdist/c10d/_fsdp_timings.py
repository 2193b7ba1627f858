"""The times that FSDP (version 1) measures are kept in a class: a set and a table for each rank.

FSDP checks there that nothing is measured twice at once, and clears both at the end of a state dict; ranks that
share the class would fail because of what another one measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from simdist.inside.torch import fsdp_profiler
from simdist.process import Patches, SimProcess, current_process

__all__ = ["keep_timings_apart"]


class _OfEachRank:
    """A class attribute that is a different object for each process."""

    def __init__(self, of_host: object, make: Callable[[], object]) -> None:
        self._of_host = of_host
        self._make = make
        self._found: dict[SimProcess, object] = {}

    def __get__(self, instance: object, owner: type) -> object:
        process = current_process()
        if process is None:
            return self._of_host
        if process not in self._found:
            self._found[process] = self._make()
        return self._found[process]


def keep_timings_apart(patches: Patches) -> None:
    """Give each rank its own set and table; called when torch's module has been imported."""
    profiler = fsdp_profiler()
    patches.replace(profiler, "profiling", _OfEachRank(profiler.profiling, set))
    patches.replace(profiler, "results", _OfEachRank(profiler.results, lambda: defaultdict(float)))
