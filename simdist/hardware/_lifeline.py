"""What ties a process to its parent: the kernel kills it when its parent dies, or hands it the parent's orphans.

Linux's own means; elsewhere these do nothing, and the supervisors look after their parents themselves.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["adopt_orphans", "die_with"]

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this signal to the calling process when `parent`, its parent, ends; now, if it has.

    What counts is the end of the thread that started the process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
