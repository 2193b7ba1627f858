"""The time axis of a picture: virtual time to pixels, with long stretches in which nothing happens cut out.

A fault takes a millisecond, and its consequences half an hour. A gap that is many times longer than everything that
happens is a *break*: it gets a fixed width, and everything else shares the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Break", "Segment", "Tick", "TimeAxis", "short_duration"]

_MUCH_LONGER = 8  # times everything that is not cut
_BREAKS = 5  # at most
_TICK_PX = 84
_STEPS = [factor * 10**power for power in range(20) for factor in (1, 2, 5)]
_UNITS = (("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time that is drawn to scale."""

    start_ns: int
    end_ns: int
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Break:
    """A stretch of time that is cut short."""

    start_ns: int
    end_ns: int
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on the axis; `strong` ones show the time since the start, others the time since the last strong one."""

    x: float
    label: str
    strong: bool


class TimeAxis:
    """Maps each instant of a run to a place between `left` and `right`.

    Example:
        >>> axis = TimeAxis([0, 10, 20, 5_000, 5_010], left=0, right=100)
        >>> [(gap.start_ns, gap.end_ns) for gap in axis.breaks]
        [(20, 5000)]
    """

    def __init__(self, points: Iterable[int], *, left: float, right: float) -> None:
        times = sorted(set(points)) or [0]
        cut = _long_gaps(times)
        self.segments: list[Segment] = []
        self.breaks: list[Break] = []
        bounds = [times[0], *(edge for gap in cut for edge in gap), times[-1]]
        stretches = list(zip(bounds[::2], bounds[1::2], strict=True))
        weights = _weights(times, stretches)
        gap_weight = 0.35 / max(1, len(cut))
        scale = (right - left) / (sum(weights) + gap_weight * len(cut))
        x = left
        self._stretches: list[Segment | Break] = []  # both, by time: each begins where the one before ends
        for index, ((start, end), weight) in enumerate(zip(stretches, weights, strict=True)):
            self.segments.append(Segment(start, end, x, x + weight * scale))
            self._stretches.append(self.segments[-1])
            x += weight * scale
            if index < len(cut):
                self.breaks.append(Break(*cut[index], x, x + gap_weight * scale))
                self._stretches.append(self.breaks[-1])
                x += gap_weight * scale
        self._ends = [stretch.end_ns for stretch in self._stretches]

    def x(self, time_ns: int) -> float:
        """Return the place of an instant; one outside the axis gets the nearest end."""
        index = bisect_left(self._ends, time_ns)
        if index == len(self._ends):
            return self.segments[-1].right
        stretch = self._stretches[index]
        length = stretch.end_ns - stretch.start_ns
        share = (time_ns - stretch.start_ns) / length if length else 0.0
        return stretch.left + max(0.0, share) * (stretch.right - stretch.left)

    def ticks(self) -> list[Tick]:
        """Return the labelled places: each segment's start, and round times after it."""
        ticks = []
        for segment in self.segments:
            ticks.append(Tick(segment.left, short_duration(segment.start_ns), True))
            length, width = segment.end_ns - segment.start_ns, segment.right - segment.left
            if not length:
                continue
            step = next(step for step in _STEPS if step * width / length >= _TICK_PX or step > length)
            for number in range(1, length // step + 1):
                offset = number * step
                sign = "+" if segment.start_ns else ""
                ticks.append(Tick(self.x(segment.start_ns + offset), sign + short_duration(offset), False))
        return ticks


def short_duration(duration_ns: int) -> str:
    """Return a duration for labels, to four digits: "1.1 s", "30 min"."""
    minutes, rest = divmod(duration_ns, 60 * 10**9)
    if minutes and rest >= 10**6:
        return f"{minutes} min {rest / 10**9:.3g} s"
    for unit, size in _UNITS:
        if duration_ns >= size:
            amount = duration_ns / size
            return f"{amount:.4g} {unit}" if amount < 10_000 else f"{amount:.0f} {unit}"
    return "0"


def _long_gaps(times: list[int]) -> list[tuple[int, int]]:
    """Return the gaps that are much longer than everything that would be left without them, by time."""
    gaps = sorted(pairwise(times), key=lambda gap: gap[0] - gap[1])
    left = [0]  # left[k]: the sum of all but the k longest, filled from the end
    for start, end in reversed(gaps):
        left.append(left[-1] + end - start)
    left.reverse()
    cuts = [
        count
        for count in range(1, min(_BREAKS, len(gaps) - 1) + 1)
        if gaps[count - 1][1] - gaps[count - 1][0] > _MUCH_LONGER * left[count] > 0
    ]
    return sorted(gaps[: max(cuts, default=0)])


def _weights(times: list[int], stretches: list[tuple[int, int]]) -> list[float]:
    """Return the room of each stretch: by the number of its events, and by its length relative to the others."""
    longest = max(end - start for start, end in stretches) or 1
    busy = [sum(start <= time <= end for time in times) for start, end in stretches]
    return [
        max(0.08, min(1.0, count / 20)) * (0.3 + 0.7 * (end - start) / longest)
        for count, (start, end) in zip(busy, stretches, strict=True)
    ]
