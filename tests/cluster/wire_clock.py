"""A clock for a network that runs without a simulation."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timer:
    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class WireClock:
    """Runs actions at their times, equal ones in the order of the calls."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, Timer]] = []
        self.asked = 0  # number of timers

    def call_at(self, time_ns: int, action: Callable[[], None]) -> Timer:
        timer = Timer(action)
        heapq.heappush(self._queue, (max(time_ns, self.now_ns), self.asked, timer))
        self.asked += 1
        return timer

    def run(self) -> None:
        while self._queue:
            time_ns, _, timer = heapq.heappop(self._queue)
            if timer.action is not None:
                self.now_ns = time_ns
                timer.action()
