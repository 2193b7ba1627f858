"""How late a wait times out, and what clocks show after a sleep.

A real wait never times out early and never exactly in time: the system's timer rings when the time has passed, and
then the thread has to get a core. Here a thread's wait times out `LATE_NS` after it is due, always the same; an event
in between is in time. `LATE_NS` is more than floats lose, whose steps are 0.24 µs for seconds since 1970.

`time.sleep` is not a timeout: it takes exactly as long as asked. Still, two floats may differ by less than that, and
clocks that were read several times at one moment are ahead of virtual time (`_clock`). So after a sleep no clock shows
less than what it showed before plus the length of the sleep. If the calendar is far ahead, the sleep takes longer, so
that virtual time catches up.
"""

from __future__ import annotations

import math

from simdist.process._process import SimProcess

__all__ = ["CALENDAR", "LATE_NS", "LOOK_NS", "MONOTONIC", "PERF_COUNTER", "Shown", "due_at", "seen"]

PERF_COUNTER, MONOTONIC, CALENDAR = range(3)

LATE_NS = 100_000
LOOK_NS = 1_000  # how far the calendar of a program moves with each look: more than the step of a float
_AHEAD_NS = 100 * LOOK_NS  # how far the calendar may stay ahead of virtual time


def due_at(process: SimProcess, timeout_ns: int) -> int:
    """The virtual time at which a wait that begins now times out."""
    now_ns = process.simulation.now_ns
    ahead_ns = process.shown_ns - process.epoch_ns - now_ns
    return now_ns + timeout_ns + LATE_NS + max(0, ahead_ns - LATE_NS // 2)


class Shown:
    """What `perf_counter`, `monotonic` and the calendar of a process showed last before a sleep."""

    __slots__ = ("_nanoseconds", "_seconds", "extra_ns")

    def __init__(self, process: SimProcess) -> None:
        self._nanoseconds = process.looked_ns, process.counted_ns, process.shown_ns
        self._seconds = tuple(process.seen_s)
        # By how much the sleep is longer, so that virtual time catches up with the calendar.
        now_ns = process.epoch_ns + process.simulation.now_ns
        self.extra_ns = max(0, max(process.shown_ns, round(process.seen_s[CALENDAR] * 1e9)) - now_ns - _AHEAD_NS)

    def show_no_less(self, process: SimProcess, seconds: float, duration_ns: int) -> None:
        """After the sleep, let no clock show less than its last value plus this duration."""
        looked_ns, counted_ns, calendar_ns = self._nanoseconds
        process.looked_ns = max(process.looked_ns, looked_ns + duration_ns - 1)  # the next look shows one more
        process.counted_ns = max(process.counted_ns, counted_ns + duration_ns - 1)
        process.shown_ns = max(process.shown_ns, calendar_ns + duration_ns - LOOK_NS)
        for clock, seen_s in enumerate(self._seconds):
            least_s = seen_s + seconds
            while least_s - seen_s < seconds:
                least_s = math.nextafter(least_s, math.inf)
            process.least_s[clock] = max(process.least_s[clock], least_s)


def seen(process: SimProcess, clock: int, shown_s: float) -> float:
    """What a clock shows that has reached `shown_s`; noted as shown."""
    shown_s = process.seen_s[clock] = max(shown_s, process.least_s[clock])
    return shown_s
