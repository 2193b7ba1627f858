"""What happens to the world as a whole."""

from __future__ import annotations

from typing import Annotated

from simdist.records._record import Record, packer, record
from simdist.values import ListOf, Maybe, Text, Whole

__all__ = ["Deadlocked", "FaultReported", "Restarted", "deadlocked", "fault_reported", "restarted"]

_NUMBER, _TEXT = Maybe(Whole()), Maybe(Text())


@record("restart")
class Restarted(Record):
    """The launcher starts all ranks again, for the `life`-th time."""

    life: Annotated[int, _NUMBER]


@record("fault")
class FaultReported(Record):
    """A fault strikes or ends: its kind, and its description."""

    fault: Annotated[str, _TEXT]
    text: Annotated[str, _TEXT]
    life: Annotated[int, _NUMBER]


@record("deadlock")
class Deadlocked(Record):
    """The first deadlock of the run is found: tasks that wait for each other, and the report."""

    cycle: Annotated[tuple[str, ...], ListOf(Text(), of="names")]
    text: Annotated[str, _TEXT]


restarted = packer(Restarted)
fault_reported = packer(FaultReported)
deadlocked = packer(Deadlocked)
