"""Lines of the program, found often and written once."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import CodeType, FrameType

from simdist.frames import is_internal_file, is_user_file

__all__ = ["calling_site", "forget_sites", "site_of"]


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
            known_site = _sites.get((id(code), frame.f_lasti))
            if known_site is not None:
                return known_site[1]
            if len(_sites) >= _MOST_SITES:
                _sites.clear()
            site = f"{PurePath(filename).name}:{frame.f_lineno} in {code.co_name}"
            _sites[id(code), frame.f_lasti] = code, site  # an identity is safe as long as its object is kept
            return site
        frame = frame.f_back
    return ""


# Remembered, for torch is imported here: which files are torch's changes no more. Hot: a dictionary's own look-up.
_of_the_program: dict[str, bool] = {}
# Remembered for a world, with the code: a line's number is counted along it.
_sites: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_SITES = 1024


def forget_sites() -> None:
    """Keep no code of a program any longer."""
    _sites.clear()


def calling_site() -> str:
    """`site_of` the program that has called what reports an event."""
    return site_of(sys._getframe(1))
