"""What a process announces before it goes on, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simdist.kernel import Task
    from simdist.process._process import SimProcess

__all__ = ["HandedOver", "PointReached", "RankBegan", "StepReached", "ThreadBegan", "report_hand_over"]


@dataclass(frozen=True, slots=True)
class StepReached:
    """Announced: a rank's program says that a training step begins (`simdist.step`)."""

    process: SimProcess
    step: int


@dataclass(frozen=True, slots=True)
class PointReached:
    """Announced: a rank's program passes a place that it names (`simdist.point`)."""

    process: SimProcess
    name: str


@dataclass(frozen=True, slots=True)
class RankBegan:
    """Reported: a rank is about to call the user's function; on the rank's own thread."""

    process: SimProcess


@dataclass(frozen=True, slots=True)
class ThreadBegan:
    """Reported: a thread of a rank, `parent`, has started another one."""

    parent: Task
    task: Task


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Reported: a thread of a rank has taken `thing`, or (`gives`) given it back for others.

    `thing` is a lock, a `SimpleQueue` (its items), or an object that stands for the end of a thread, for a pipe, or
    for all sockets of the world (their bytes).
    """

    task: Task
    thing: object
    gives: bool


def report_hand_over(task: Task | None, thing: object, *, gives: bool) -> None:
    """Report to listeners that a thread has taken a thing, or given it back."""
    if task is not None:
        bus = task.simulation.bus
        if bus.heard and bus.hears(HandedOver):
            bus.report(HandedOver(task, thing, gives))
