"""Lines of the program, found often and written once."""

from __future__ import annotations

import functools
import sys
from pathlib import PurePath
from types import FrameType

from simdist.frames import is_internal_file, is_user_file

__all__ = ["calling_site", "site_of"]


def site_of(frame: FrameType | None) -> str:
    """`train.py:12 in step`: the innermost line from `frame` outwards in a file of the user's; or nothing."""
    while frame is not None:
        code = frame.f_code
        if _is_of_the_program(code.co_filename):
            return _written(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return ""


# Remembered, for torch is imported here: which files are torch's changes no more.
@functools.lru_cache(maxsize=4096)
def _is_of_the_program(filename: str) -> bool:
    return is_user_file(filename) and not is_internal_file(filename)


@functools.lru_cache(maxsize=1024)
def _written(filename: str, line: int, function: str) -> str:
    return f"{PurePath(filename).name}:{line} in {function}"


def calling_site() -> str:
    """`site_of` the program that has called what tells of an event."""
    return site_of(sys._getframe(1))
