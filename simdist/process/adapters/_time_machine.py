"""time_machine on a rank: refused, since it changes functions in C which ranks do not call.

It takes what is called `time.time`, `datetime.datetime.now` and so on for functions in C, and changes their pointers.
While a world lives, functions in Python have these names, and the process would crash. If a rank is the first to import
it, it has kept these functions as the original ones; so the host imports it anew after the world.
"""

from __future__ import annotations

import sys

from simdist.process._refusals import refused
from simdist.process._runtime import Patches, current_process

__all__ = ["NAME", "adapt"]

NAME = "_time_machine"
_PACKAGE = "time_machine"
_PATCHES = ("patch", "patch_if_needed")  # of version 3, and before
_TEXT = (
    "time_machine changes functions in C, and the clock of ranks is in Python; let the run begin at another moment, "
    "with start_time=..."
)


def adapt(patches: Patches) -> None:
    """Refuse to travel on ranks."""
    module = sys.modules[NAME]
    for name in _PATCHES:
        if hasattr(module, name):
            patches.wrap(module, name, refused(_TEXT))
    if current_process() is not None:
        patches.on_undo(_forget)


def _forget() -> None:
    for name in (NAME, _PACKAGE):
        sys.modules.pop(name, None)
