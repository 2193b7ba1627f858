"""The past and present speeds of a flow."""

from __future__ import annotations

import math
from bisect import bisect_right

__all__ = ["Pace", "ends_ns"]

_ROUNDING = 1e-6  # ns by which a moment may be late and still count as in this nanosecond


class Pace:
    """The speeds of a flow, each from a moment on: a share of the speed that it has alone, which it has at first.

    Example:
        >>> pace = Pace()
        >>> pace.change(100, 0.5)
        >>> pace.end_ns(90, 20)
        120
    """

    __slots__ = ("_since_ns", "_speeds")

    def __init__(self) -> None:
        self._since_ns: list[int] = []
        self._speeds: list[float] = []

    def change(self, now_ns: int, speed: float) -> None:
        """Set the speed from now on. Moments must be in order; the last speed set at one moment counts."""
        if self._since_ns and self._since_ns[-1] == now_ns:
            self._speeds[-1] = speed
        else:
            self._since_ns.append(now_ns)
            self._speeds.append(speed)

    def end_ns(self, start_ns: int, wire_ns: int) -> int:
        """When a message is through that leaves at `start_ns` and takes `wire_ns` at full speed."""
        index = bisect_right(self._since_ns, start_ns) - 1
        speed = self._speeds[index] if index >= 0 else 1.0
        moment, left = start_ns, float(wire_ns)
        for next_ns, next_speed in zip(self._since_ns[index + 1 :], self._speeds[index + 1 :], strict=True):
            if moment + left / speed <= next_ns:
                break
            left -= (next_ns - moment) * speed
            moment, speed = next_ns, next_speed
        return ends_ns(moment, left, speed)


def ends_ns(now_ns: int, left_ns: float, speed: float) -> int:
    """The nanosecond in which work of `left_ns` at full speed ends."""
    return now_ns + max(0, math.ceil(left_ns / speed - _ROUNDING))
