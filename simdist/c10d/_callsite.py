"""Where in the user's code a rank is, for reports."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import FrameType

import torch

import simdist
from simdist.kernel import Task

__all__ = ["call_site", "is_ours", "issued_by_torch", "user_line"]

_OURS = str(PurePath(str(simdist.__file__)).parent)
_TORCHS = str(PurePath(str(torch.__file__)).parent)
_FRONT = tuple(str(PurePath(_TORCHS, "distributed", name)) for name in ("distributed_c10d.py", "c10d_logger.py"))


def call_site(task: Task | None) -> str:
    """` at file.py:12 in train`: the innermost line of the task that is neither simdist's nor torch's; or nothing."""
    return user_line(sys._current_frames().get(task.ident) if task is not None else None)


def user_line(frame: FrameType | None) -> str:
    """The same, from a frame on."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, _TORCHS)) and "<frozen" not in name:
            return f" at {PurePath(name).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def issued_by_torch(frame: FrameType | None) -> bool:
    """True if the operation that is being issued is torch's own doing: DDP's, FSDP's, `join`'s.

    What a program calls itself passes through the front of torch.distributed, and nothing else of torch.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, *_FRONT)) and "<frozen" not in name:
            return name.startswith(_TORCHS)
        frame = frame.f_back
    return False


def is_ours(frame: FrameType) -> bool:
    """True for a frame of simdist's own code."""
    return frame.f_code.co_filename.startswith(_OURS)
