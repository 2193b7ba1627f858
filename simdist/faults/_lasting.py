"""Faults that last from one moment to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.faults._fault import Fault, Problem, Surroundings
from simdist.faults._fields import DELAY, MOMENT
from simdist.faults._stage import Stage

__all__ = ["LastingFault"]


class LastingFault(Fault):
    """A fault that lasts from `start_ns` until `until_ns` (None: for ever, or until it is lifted).

    With `after`, both times count from the strike of that other fault.
    """

    reported_at_start: ClassVar[bool] = True  # else `lay_on` reports the fault when it does something
    says_its_end: ClassVar[bool] = False  # also at `until_ns`; when lifted, every fault does

    start_ns: Annotated[int, DELAY] = 0
    until_ns: Annotated[int | None, MOMENT] = None

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every fault, and an end before the start."""
        yield from super().problems(world)
        if world.fine("start_ns", "until_ns") and self.until_ns is not None and self.until_ns <= self.start_ns:
            yield "until_ns", "ends before it starts"

    def is_on(self, now_ns: int) -> bool:
        """True if it lasts at this moment, on the time line of its own times."""
        return self.start_ns <= now_ns and (self.until_ns is None or now_ns < self.until_ns)

    def arm(self, stage: Stage) -> None:
        """Lay it on from its start, and report it then; the past is not changed."""
        origin_ns = stage.origin_ns
        start_ns = max(origin_ns + self.start_ns, stage.now_ns)
        until_ns = None if self.until_ns is None else origin_ns + self.until_ns
        self.lay_on(stage, start_ns, until_ns)
        if not self.reported_at_start:
            pass
        elif start_ns > stage.now_ns:
            stage.call_at(start_ns, stage.report)
        else:  # no timer: a timer in the future keeps the world from being at rest
            stage.report()
        if self.says_its_end and until_ns is not None:
            if until_ns > stage.now_ns:
                stage.call_at(until_ns, stage.report_end)
            else:
                stage.report_end()

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Set up its effect from `start_ns` until `until_ns`, which are times of the simulation."""
        raise NotImplementedError(f"{type(self).__name__} has no lay_on(self, stage, start_ns, until_ns)")
