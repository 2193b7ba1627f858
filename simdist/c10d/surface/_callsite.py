"""Where in the user's code a rank is, for reports."""

from __future__ import annotations

import sys
from types import FrameType

from simdist.frames import is_internal_file, torch_folder, user_line
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
    known = _of_torch
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename in known:
            of_torch = known[filename]
        else:
            of_torch = known[filename] = _is_of_torch(filename)
        if of_torch is not None:
            return of_torch
        frame = frame.f_back
    return False


# Remembered, for torch is imported here: which files are torch's changes no more. Hot: a dictionary's own look-up.
_of_torch: dict[str, bool | None] = {}


def _is_of_torch(filename: str) -> bool | None:
    """True for a file of torch, False for one of a program; None for what lies between a program and an operation."""
    torchs = torch_folder()
    if filename.startswith(torchs):
        return None if filename.removeprefix(torchs) in _FRONT else True
    return None if is_internal_file(filename) else False
