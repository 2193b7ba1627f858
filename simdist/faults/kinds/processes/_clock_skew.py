"""`ClockSkew`: the wall clock is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Machine, Problem, Surroundings
from simdist.faults._fields import OFFSET, RANK
from simdist.faults._lasting import LastingFault
from simdist.faults._stage import Stage
from simdist.faults._words import milliseconds

__all__ = ["ClockSkew"]

_MOST_PPM = 1_000_000  # twice as fast; as slow as this a clock stands still


class ClockSkew(LastingFault):
    """The wall clock of a host is wrong: ahead by `offset_ns` (negative: behind), and by `drift_ppm` more and more.

    From `start_ns` on it is off at once, as after a correction by NTP; a clock with a drift gains so many microseconds
    in each second (negative: loses). At `until_ns` it is right again, at once. It is the clock of the host that `rank`
    begins on, so all ranks of that host see it, in each life. It affects `time.time`, `datetime.now`, CLOCK_REALTIME,
    times of log lines and dumps, and those of files that a rank of the host writes. `time.monotonic`, `perf_counter`,
    sleeps and time-outs are right.

    Example:
        >>> import simdist, time
        >>> def work():
        ...     before_s, began_s = time.time(), time.monotonic()
        ...     time.sleep(10)
        ...     return round(time.time() - before_s), time.monotonic() - began_s
        >>> slow = ClockSkew(rank=0, offset_ns=-3_000_000_000, start_ns=5_000_000_000)
        >>> simdist.run(work, world_size=1, faults=[slow]).values
        [(7, 10.0)]
    """

    rank: Annotated[int, RANK]
    offset_ns: Annotated[int, OFFSET] = 0
    drift_ppm: float = 0.0

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault that lasts, and a clock that is right, or runs backwards."""
        yield from super().problems(world)
        if world.fine("drift_ppm") and not -_MOST_PPM < self.drift_ppm <= _MOST_PPM:
            yield "drift_ppm", f"{self.drift_ppm:g} ppm is no drift; expected more than -1000000, and at most 1000000"
        if world.fine("offset_ns", "drift_ppm") and not self.offset_ns and not self.drift_ppm:
            yield "offset_ns", "nothing makes the clock wrong; give offset_ns or drift_ppm"

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Set the clock wrong for that time."""

        def skew_ns(time_ns: int) -> int:
            if time_ns < start_ns or (until_ns is not None and time_ns >= until_ns):
                return 0
            return self.offset_ns + round((time_ns - start_ns) * self.drift_ppm / 1e6)

        stage.skew_clock(self.rank, skew_ns)

    def real_obstacle(self, machine: Machine) -> str:
        """Refuses: the clock is not the rank's own."""
        return (
            "real processes share the clock of the machine, and setting it would strike everything else that runs there"
        )

    def begins(self) -> str:
        """Describe the offset and the drift."""
        side = "behind" if self.offset_ns < 0 else "ahead"
        parts = [f"is {milliseconds(abs(self.offset_ns))} {side}"] if self.offset_ns else []
        if self.drift_ppm:
            parts.append(f"{'loses' if self.drift_ppm < 0 else 'gains'} {abs(self.drift_ppm):g} us per second")
        return f"the wall clock of rank {self.rank}'s host {' and '.join(parts)}"

    def ends(self) -> str:
        """Describe the end of the skew."""
        return f"the wall clock of rank {self.rank}'s host is right again"
