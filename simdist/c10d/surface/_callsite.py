"""Where in the user's code a rank is, for reports."""

from __future__ import annotations

import sys
from types import FrameType

from simdist.frames import is_ours, torch_folder, user_line
from simdist.kernel import Task

__all__ = ["call_site", "issued_by_torch"]

_FRONT = ("distributed/distributed_c10d.py", "distributed/c10d_logger.py")  # in torch


def call_site(task: Task | None) -> str:
    """` at file.py:12 in train`: the innermost line of the task that is neither simdist's nor torch's; or nothing."""
    return user_line(sys._current_frames().get(task.ident) if task is not None else None)


def issued_by_torch(frame: FrameType | None) -> bool:
    """True if the operation that is being issued is torch's own doing: DDP's, FSDP's, `join`'s.

    What a program calls itself passes through the front of torch.distributed, and nothing else of torch.
    """
    torchs = torch_folder()
    front = tuple(torchs + name for name in _FRONT)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_ours(frame) and not name.startswith((*front, "<frozen")):
            return name.startswith(torchs)
        frame = frame.f_back
    return False
