"""Python's garbage collector in a world of many processes.

The collector runs each time that a process has made some hundred objects more than it has freed. A thousand ranks make
them a thousand times as fast, and each collection costs as much as in one process: the start of 1,024 ranks spent 40 %
of its time there. So while a world lives the first threshold is multiplied by the number of its ranks, as if each had
a collector of its own; programs that read the threshold see the usual one.

The moment of a collection depends on all objects that the process has made before the world. A program can see this
moment if garbage holds device memory, which is counted, or pipes and sockets, which other tasks see close. In these
worlds a rank collects after a fixed number of hand-overs (`Rounds`), which is the same in every run with one seed, when
it next handles its inbox. In a world with devices all older objects are frozen meanwhile: looking through all of torch
would take longer than most programs do. A world with child processes, pipes or sockets collects in rounds from the
first of them on.

Callbacks of the host (`gc.callbacks`; hypothesis has one, to time the collector) are not called while a world lives.
They would run on the rank that happens to exceed the threshold, and read that rank's clock.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator

from simdist.inside.python import original
from simdist.process._patches import Patches, Replacement
from simdist.process._process import SimProcess

__all__ = ["Rounds", "collector_of", "host_froze", "install", "leave_to_rounds"]

_MOST = 1_000  # ranks that count for the threshold: garbage must not fill the memory before a collection
_BESIDE_ROUNDS = 2_000_000  # objects, after which Python itself collects: more than the largest imports leave
# CPython 3.12 freezes 375 objects when it starts, 3.11 and 3.13 none.
_FROZEN_AT_START = 1_000 if sys.version_info[:2] == (3, 12) else 0
_NEW_EVERY, _ALL_AFTER = 256, 4096  # hand-overs
_Thresholds = tuple[int, int, int]

_worlds = 0  # with frozen objects, since a full collection was last considered
_known: dict[_Thresholds, _Thresholds] = {}  # what is set while a world lives -> what was set before


def host_froze() -> bool:
    """True if the program froze objects (`gc.freeze`); those that the interpreter froze do not count."""
    return gc.get_freeze_count() > _FROZEN_AT_START


@contextlib.contextmanager
def collector_of(processes: int, *, in_rounds: bool = False) -> Iterator[None]:
    """A context in which the collector's threshold is that of so many processes; `in_rounds` leaves it to `Rounds`."""
    before = gc.get_threshold()
    objects = before[0] * min(processes, _MOST)
    now = max(objects, _BESIDE_ROUNDS) if in_rounds and objects else objects, before[1], before[2]
    freezes = in_rounds and not host_froze()  # the host's frozen objects must stay frozen
    if freezes:
        _age(before)
        gc.freeze()
    gc.set_threshold(*now)
    _known[now] = before
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        gc.callbacks[:0] = callbacks
        if freezes:
            gc.unfreeze()
        _known.clear()
        gc.set_threshold(*before)


def _age(thresholds: _Thresholds) -> None:
    """Collect the young objects, and all objects if a full collection is due.

    Thawed objects are old, and the collector counts the objects that grow old to know when a full collection is due.
    Objects that it has never looked at are not in that count: the garbage of a thousand tests with a world each would
    stay. Python's other condition is a number of collections of young objects, the third threshold. Freezing sets that
    number to zero, so worlds are counted instead.
    """
    global _worlds
    if not gc.isenabled() or not thresholds[0]:
        return
    gc.collect(1)
    _worlds += 1
    if _worlds <= thresholds[2]:
        return
    _worlds = 0
    gc.set_threshold(1, thresholds[1], 0)
    # Four objects that are not taken from a free list exceed the threshold: Python runs its collector now, and a full
    # collection only if its own rule calls for one.
    [set() for _ in range(4)]


def leave_to_rounds() -> None:
    """From now on leave collections to `Rounds`: Python itself collects hardly ever."""
    now = original(gc.get_threshold)()
    if now[0]:
        rarely = max(now[0], _BESIDE_ROUNDS), now[1], now[2]
        _known[rarely] = _known.get(now, now)
        original(gc.set_threshold)(*rarely)
    if gc.isenabled():
        gc.collect(1)  # all objects that exist grow old now


class Rounds:
    """Has ranks collect garbage after a number of hand-overs: the young objects; all objects ever more seldom."""

    def __init__(self) -> None:
        self._turns = 0
        self._all_at = _ALL_AFTER

    def switch(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        """Called by the kernel whenever another process gets the baton."""
        self._turns += 1
        if not self._turns % _NEW_EVERY and entering is not None and self._look not in entering.inbox:
            entering.inbox.append(self._look)

    def _look(self) -> None:
        if not gc.isenabled():
            return
        if self._turns < self._all_at:
            gc.collect(1)
        else:
            self._all_at = 2 * self._turns  # a full collection takes as long as a thousand hand-overs
            gc.collect()


def _as_before(original: Callable[[], _Thresholds]) -> Callable[[], _Thresholds]:
    def get_threshold() -> _Thresholds:
        found = original()
        return _known.get(found, found)

    return get_threshold


_REPLACEMENTS = (Replacement(gc, "get_threshold", _as_before),)


def install(patches: Patches) -> None:
    """Show programs the thresholds from before the world."""
    patches.redirect(_REPLACEMENTS)
