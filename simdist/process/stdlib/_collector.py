"""Python's garbage collector in a world of many processes.

It looks for garbage each time that a process has made some hundred objects more than it has freed. A thousand ranks
make them a thousand times as fast, and each look costs as much as in one process: the start of 1,024 ranks spent 40 %
of its time there. So while a world lives the first threshold is multiplied by the number of its ranks, as if each had
a collector of its own; programs that ask see the threshold that they know.

When it looks depends on all that the process has made before the world. A program can see it where garbage holds what
is counted, as the memory of devices is, or what others see close, as pipes and sockets: in such worlds a rank looks
after so many hand-overs (`Rounds`), of which every run with one seed has the same, when it next runs what was delivered
to it. What there was before a world with devices is frozen meanwhile: looking through all of torch would take longer
than most programs do. A world with child processes, pipes or sockets looks in rounds from the first of them on.

Callbacks of the host (`gc.callbacks`; hypothesis has one, to time the collector) are not called while a world lives.
They would run on the rank that happens to make one object too many, and read that rank's clock.
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

_MOST = 1_000  # garbage must not fill the memory before anyone looks
_BESIDE_ROUNDS = 2_000_000  # objects, after which it looks by itself: more than the largest imports leave
# CPython 3.12 freezes 375 objects when it starts, 3.11 and 3.13 none.
_FROZEN_AT_START = 1_000 if sys.version_info[:2] == (3, 12) else 0
_NEW_EVERY, _ALL_AFTER = 256, 4096  # hand-overs
_Thresholds = tuple[int, int, int]

_known: dict[_Thresholds, _Thresholds] = {}  # what is set while a world lives -> what was set before


def host_froze() -> bool:
    """True if the program froze objects (`gc.freeze`); what the interpreter froze by itself does not count."""
    return gc.get_freeze_count() > _FROZEN_AT_START


@contextlib.contextmanager
def collector_of(processes: int, *, in_rounds: bool = False) -> Iterator[None]:
    """Inside, the collector waits for as many objects as so many processes make; `in_rounds`, for those `Rounds`."""
    before = gc.get_threshold()
    objects = before[0] * min(processes, _MOST)
    now = max(objects, _BESIDE_ROUNDS) if in_rounds and objects else objects, before[1], before[2]
    freezes = in_rounds and not host_froze()  # what the host has frozen must stay so
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
    """Have the collector look at all that is young, and at everything if that is due.

    What is thawed is old, and the collector counts what grows old to know when it has to look at everything. What it
    has never looked at is not in that count: the garbage of a thousand tests with a world each would stay.
    """
    if not gc.isenabled() or not thresholds[0]:
        return
    gc.collect(1)
    gc.set_threshold(1, thresholds[1], 0)
    # Objects too many, and of a kind of which Python keeps none for later use: it looks by itself now, at everything
    # only where its own rule says so.
    [set() for _ in range(4)]


def leave_to_rounds() -> None:
    """The collector looks by itself no more, or hardly ever: `Rounds` do, from now on."""
    now = original(gc.get_threshold)()
    if now[0]:
        rarely = max(now[0], _BESIDE_ROUNDS), now[1], now[2]
        _known[rarely] = _known.get(now, now)
        original(gc.set_threshold)(*rarely)
    if gc.isenabled():
        gc.collect(1)  # whatever it has looked at already: all that there is grows old now


class Rounds:
    """Has ranks look for garbage: among what is new after so many hand-overs, among everything ever more seldom."""

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
            self._all_at = 2 * self._turns  # it takes as long as a thousand hand-overs
            gc.collect()


def _as_before(original: Callable[[], _Thresholds]) -> Callable[[], _Thresholds]:
    def get_threshold() -> _Thresholds:
        found = original()
        return _known.get(found, found)

    return get_threshold


_REPLACEMENTS = (Replacement(gc, "get_threshold", _as_before),)


def install(patches: Patches) -> None:
    """Show the thresholds from before to all who ask."""
    patches.redirect(_REPLACEMENTS)
