"""`DiskFull`: no space is left."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Annotated

from simdist.faults._disk_fault import DiskFault
from simdist.faults._stage import Stage
from simdist.values import Whole

if TYPE_CHECKING:
    from simdist.files import StorageCalled
    from simdist.kernel import Verdict

__all__ = ["DiskFull"]

_NEED_SPACE = ("create", "mkdir", "symlink")


class DiskFull(DiskFault):
    """Only `free_bytes` more can be written while it lasts; then writes and new files fail with ENOSPC.

    The write that does not fit as a whole fails as a whole. What is removed meanwhile makes no room.
    """

    free_bytes: Annotated[int, Whole(least=0)] = 0

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Count what is written."""
        from simdist.files import StorageCalled  # torch comes with it
        from simdist.kernel import PASS, Verdict

        written = 0

        def judge(called: StorageCalled) -> Verdict:
            nonlocal written
            if not self.strikes(called.process.rank, stage.now_ns, start_ns, until_ns):
                return PASS
            if called.effect == "write" and written + called.size <= self.free_bytes:
                written += called.size
                return PASS
            if called.effect == "write" or (called.effect in _NEED_SPACE and written >= self.free_bytes):
                return Verdict(error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            return PASS

        stage.judge(StorageCalled, judge)

    def begins(self) -> str:
        """How much is left."""
        return f"the disk has room for {self.free_bytes} more bytes"

    def ends(self) -> str:
        """There is room."""
        return "the disk has room again"
