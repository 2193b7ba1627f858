"""What is announced before a disk changes."""

from __future__ import annotations

from dataclasses import dataclass

from simdist.process import SimProcess

__all__ = ["StorageCalled", "WrittenInPartError"]


@dataclass(frozen=True, slots=True)
class StorageCalled:
    """Announced: a rank is about to change a disk. The fields are those of the record `Stored`."""

    process: SimProcess
    effect: str
    path: str
    offset: int = 0
    size: int = 0
    to: str = ""


class WrittenInPartError(Exception):
    """In a verdict on a write: only `count` of its bytes are written. The program sees a short count."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count
