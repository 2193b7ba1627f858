"""`IoError`: an effect on a disk fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Annotated

from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION
from simdist.faults._operations import effects_of
from simdist.faults._rank_fault import RankFault
from simdist.values import Text, brief

__all__ = ["IoError"]


class IoError(RankFault):
    """An effect on the disk fails: the program gets an OSError with `error`, and nothing is done.

    As on Linux, a failed fsync (the default `op`) is reported once: the next one succeeds, and the bytes of the first
    are still not on the disk, unless they are written again.
    """

    op: Annotated[str | None, OPERATION] = "fsync"
    error: Annotated[str, Text()] = "EIO"

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, an unknown error, and an operation that is no effect on a disk."""
        yield from super().problems(world)
        if world.fine("op") and not effects_of(self.op):
            yield "op", f"{self.op!r} is no effect on a disk; the usual ones are 'write', 'fsync' and 'rename'"
        if world.fine("error") and not isinstance(getattr(errno, self.error, None), int):
            yield "error", f"unknown error {brief(self.error)}; expected a name such as 'EIO', 'ENOSPC' or 'EDQUOT'"

    def exception(self) -> Exception:
        """Return the OSError."""
        number = int(getattr(errno, self.error))
        return OSError(number, os.strerror(number))

    def begins(self) -> str:
        """Describe the error."""
        return f"rank {self.rank} gets {self.error} from its disk"
