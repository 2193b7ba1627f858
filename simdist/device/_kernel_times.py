"""When kernels ran on which stream, for pictures: reported where there is a model of computing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simdist.device._marks import Mark
from simdist.kernel import Bus

__all__ = ["KernelQueued", "KernelRun", "KernelTimes"]


@dataclass(frozen=True, slots=True)
class KernelQueued:
    """Reported: a rank gave a kernel that takes time to a stream of a device."""

    rank: int
    device: int
    stream: int  # 0: the default one
    name: str  # of the operator: "mm"
    begin: Mark
    end: Mark


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel's time on a stream, in virtual nanoseconds.

    Attributes:
        rank: the rank that started it.
        device: the device's index on its host.
        stream: the stream's number on the device; 0 is the default one.
        name: the operator, such as "mm".
        start_ns: when it began.
        end_ns: when it ended.
    """

    rank: int
    device: int
    stream: int
    name: str
    start_ns: int
    end_ns: int


class KernelTimes:
    """Observes worlds and keeps the times of their kernels."""

    def __init__(self) -> None:
        self._queued: list[KernelQueued] = []

    def world_begins(self, bus: Bus) -> None:
        """Listen in this world, and forget the one before."""
        self._queued.clear()
        bus.listen(KernelQueued, self._queued.append)

    def runs(self) -> Iterator[KernelRun]:
        """Yield the kernels that ran to their end, in the order in which they were started."""
        for each in self._queued:
            if each.begin.at_ns is not None and each.end.at_ns is not None:
                yield KernelRun(each.rank, each.device, each.stream, each.name, each.begin.at_ns, each.end.at_ns)
