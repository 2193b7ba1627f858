"""`DiskFull`: no space is left."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Annotated

from simdist.faults._disk_fault import DiskFault
from simdist.faults._stage import Stage
from simdist.values import OneOf, Whole

if TYPE_CHECKING:
    from simdist.files import StorageCalled
    from simdist.kernel import Verdict

__all__ = ["DiskFull"]

_NEED_SPACE = ("create", "mkdir", "symlink")


class DiskFull(DiskFault):
    """Only `free_bytes` more can be written while it lasts; then writes and new files fail with ENOSPC.

    A write that fits in part is a short one, as on Linux, and the next one fails. Removing files meanwhile makes no
    room. With `error="EDQUOT"` a quota is used up; give the `rank` that it belongs to.
    """

    free_bytes: Annotated[int, Whole(least=0)] = 0
    error: Annotated[str, OneOf(("ENOSPC", "EDQUOT"))] = "ENOSPC"

    def lay_on(self, stage: Stage, start_ns: int, until_ns: int | None) -> None:
        """Count the bytes that are written."""
        from simdist.files import StorageCalled  # torch comes with it
        from simdist.kernel import PASS, Verdict

        written = 0

        def judge(called: StorageCalled) -> Verdict:
            nonlocal written
            if not self.strikes(called.process.rank, stage.now_ns, start_ns, until_ns):
                return PASS
            room = self.free_bytes - written
            if called.effect == "write" and room > 0:
                written += min(called.size, room)
                return PASS if called.size <= room else Verdict(part_bytes=room)
            if called.effect == "write" or (called.effect in _NEED_SPACE and written >= self.free_bytes):
                number = int(getattr(errno, self.error))
                return Verdict(error=OSError(number, os.strerror(number)))
            return PASS

        stage.judge(StorageCalled, judge)

    def begins(self) -> str:
        """Describe the space that is left."""
        return f"the {'disk' if self.error == 'ENOSPC' else 'quota'} has room for {self.free_bytes} more bytes"

    def ends(self) -> str:
        """Describe the end of the shortage."""
        return f"the {'disk' if self.error == 'ENOSPC' else 'quota'} has room again"
