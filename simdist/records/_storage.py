"""What a rank does to a simulated disk."""

from __future__ import annotations

from typing import Annotated

from simdist.records._record import Record, packer, record
from simdist.values import Maybe, Text, Whole

__all__ = ["DiskLeft", "Stored", "WrittenLate", "disk_left", "stored", "written_late"]

_NUMBER, _TEXT = Maybe(Whole()), Maybe(Text())


@record("storage")
class Stored(Record):
    """A rank has changed a disk: `effect` is "write", "rename", ...; `path` is relative to the disk.

    `size` is how many bytes were written, or the new size; `offset` where; `to` the other name of a rename or a link.
    The effect "unseen" is a change that was noticed later: code made it that the simulation can't see.
    """

    effect: Annotated[str, _TEXT]
    path: Annotated[str, _TEXT]
    offset: Annotated[int, _NUMBER]
    size: Annotated[int, _NUMBER]
    to: Annotated[str, _TEXT]


@record("disk")
class DiskLeft(Record):
    """A host has lost power: its disk's content of `path` is not what the host saw; `text` has the difference."""

    path: Annotated[str, _TEXT]
    text: Annotated[str, _TEXT]


@record("late-write")
class WrittenLate(Record):
    """A process of an earlier `life` has changed `path`, after the launcher had started all ranks again."""

    path: Annotated[str, _TEXT]
    life: Annotated[int, _NUMBER]


stored = packer(Stored)
written_late = packer(WrittenLate)
disk_left = packer(DiskLeft)
