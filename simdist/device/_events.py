"""The events of devices on the bus, and the times of kernels on their streams, for pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simdist.device._marks import Mark
from simdist.kernel import Bus
from simdist.process import SimProcess

__all__ = ["KernelQueued", "KernelRun", "KernelTimes", "StreamRaced"]


@dataclass(frozen=True, slots=True)
class StreamRaced:
    """Reported: a stream uses memory on which another may still work; only in worlds that look for it.

    `use` and `other` are what the two do ("mul writes it on stream 7 of cuda:0"), the other first; `where` and
    `against` are their lines, empty outside the program; `cure` says how to order the two.
    """

    process: SimProcess
    shape: Sequence[int]
    use: str
    other: str
    where: str
    against: str
    cure: str


@dataclass(frozen=True, slots=True)
class KernelQueued:
    """Reported: a rank gave a kernel to a stream of a device; only where there is a model of computing."""

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
