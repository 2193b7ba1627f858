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
    known = _of_the_program
    while frame is not None:
        code = frame.f_code
        filename = code.co_filename
        is_of_it = known.get(filename)
        if is_of_it is None:
            is_of_it = known[filename] = is_user_file(filename) and not is_internal_file(filename)
        if is_of_it:
            return _written(filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return ""


# Remembered, for torch is imported here: which files are torch's changes no more. Hot: a dictionary's own look-up.
_of_the_program: dict[str, bool] = {}


@functools.lru_cache(maxsize=1024)
def _written(filename: str, line: int, function: str) -> str:
    return f"{PurePath(filename).name}:{line} in {function}"


def calling_site() -> str:
    """`site_of` the program that has called what tells of an event."""
    return site_of(sys._getframe(1))
