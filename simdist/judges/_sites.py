"""Lines of the program as text, cached because they are needed often."""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import CodeType, FrameType

from simdist.frames import is_internal_file, is_user_file

__all__ = ["calling_site", "forget_sites", "site_of"]


def site_of(frame: FrameType | None) -> str:
    """Return the innermost line from `frame` outwards in a user's file, as `train.py:12 in step`; or an empty text."""
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
            _sites[id(code), frame.f_lasti] = code, site  # the id stays valid while the code is kept
            return site
        frame = frame.f_back
    return ""


# A cache: torch is already imported, so a file's answer does not change. Hot: only a dictionary look-up.
_of_the_program: dict[str, bool] = {}
# A cache for a world, with the code objects: computing a line number is slow.
_sites: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_SITES = 1024


def forget_sites() -> None:
    """Release the code objects of the program."""
    _sites.clear()


def calling_site() -> str:
    """Return `site_of` the program's call that led to the current event."""
    return site_of(sys._getframe(1))
