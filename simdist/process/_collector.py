"""Python's garbage collector in a world of many processes.

It looks for garbage each time that a process has made some hundred objects more than it has freed. A thousand ranks
make them a thousand times as fast, and each look costs as much as in one process: the start of 1,024 ranks spent 40 %
of its time there. So while a world lives the first threshold is multiplied by the number of its ranks, as if each had
a collector of its own; programs that ask see the threshold that they know.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

from simdist.process._patches import Patches, Replacement

__all__ = ["collector_of", "install"]

_MOST = 1_000  # garbage must not fill the memory before anyone looks
_Thresholds = tuple[int, int, int]

_known: dict[_Thresholds, _Thresholds] = {}  # what is set while a world lives -> what was set before


@contextlib.contextmanager
def collector_of(processes: int) -> Iterator[None]:
    """Inside, the collector waits for as many objects as so many processes make."""
    before = gc.get_threshold()
    now = before[0] * min(processes, _MOST), before[1], before[2]
    gc.set_threshold(*now)
    _known[now] = before
    try:
        yield
    finally:
        _known.clear()
        gc.set_threshold(*before)


def _as_before(original: Callable[[], _Thresholds]) -> Callable[[], _Thresholds]:
    def get_threshold() -> _Thresholds:
        found = original()
        return _known.get(found, found)

    return get_threshold


_REPLACEMENTS = (Replacement(gc, "get_threshold", _as_before),)


def install(patches: Patches) -> None:
    """Let whoever asks for the thresholds see those from before."""
    patches.redirect(_REPLACEMENTS)
