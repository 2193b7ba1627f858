"""Ties a process to its parent: the kernel kills it when its parent dies, or gives it the parent's orphans.

This works on Linux only; elsewhere these functions do nothing, and the supervisors watch their parents themselves.
"""

from __future__ import annotations

import os
import signal

from simdist.inside.system import ask_parent_signal, become_subreaper

__all__ = ["adopt_orphans", "die_with"]


def die_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this signal to the calling process when `parent`, its parent, ends; at once if it has ended.

    The signal comes at the end of the thread that started the process.
    """
    ask_parent_signal(number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    become_subreaper()
