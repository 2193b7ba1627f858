"""Which code is the user's: not simdist's, not torch's, not Python's, and nothing that is installed."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path
from types import FrameType

import simdist

__all__ = ["Line", "is_user_file", "user_frame"]

Line = tuple[str, int, str]
"""A file, a line in it, and the function that it belongs to."""

_OURS = str(Path(str(simdist.__file__)).parent) + os.sep
_INSTALLED = tuple(
    sorted({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
)


@functools.lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """True for a file that the user wrote. What is installed in editable mode counts as written."""
    return not filename.startswith((_OURS, "<", *_INSTALLED))


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's code, from `frame` outwards."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
