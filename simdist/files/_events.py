"""The event that is announced before a disk changes."""

from __future__ import annotations

from dataclasses import dataclass

from simdist.process import SimProcess

__all__ = ["StorageCalled"]


@dataclass(frozen=True, slots=True)
class StorageCalled:
    """Announced: a rank is about to change a disk. The fields are those of the record `Stored`."""

    process: SimProcess
    effect: str
    path: str
    offset: int = 0
    size: int = 0
    to: str = ""
