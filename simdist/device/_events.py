"""The events of devices on the bus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simdist.process import SimProcess

__all__ = ["StreamRaced"]


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
