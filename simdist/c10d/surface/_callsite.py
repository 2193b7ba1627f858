"""A rank's place in the user's code, for reports."""

from __future__ import annotations

import sys
from types import FrameType

from simdist.frames import is_internal_file, torch_folder, user_line
from simdist.kernel import Task

__all__ = ["call_site", "issued_by_torch"]

_FRONT = ("distributed/distributed_c10d.py", "distributed/c10d_logger.py")  # in torch


def call_site(task: Task | None) -> str:
    """Return the task's innermost line outside of simdist and torch, as ` at file.py:12 in train`; or an empty text."""
    return user_line(sys._current_frames().get(task.ident) if task is not None else None)


def issued_by_torch(frame: FrameType | None) -> bool:
    """True if torch itself issues the current operation: DDP, FSDP, `join`.

    A program's own call passes through the front of torch.distributed, and through no other file of torch.
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


# A cache: torch is already imported, so a file's answer does not change. Hot: only a dictionary look-up.
_of_torch: dict[str, bool | None] = {}


def _is_of_torch(filename: str) -> bool | None:
    """True for a file of torch, False for one of a program; None for files between a program and an operation."""
    torchs = torch_folder()
    if filename.startswith(torchs):
        return None if filename.removeprefix(torchs) in _FRONT else True
    return None if is_internal_file(filename) else False
