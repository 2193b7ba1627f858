"""The place of the files of a sweep's runs: in memory, if they are small.

A rename over another file, as at the end of each checkpoint, makes ext4 write the bytes to the real disk, which is
useless here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from simdist.result import Event
from simdist.trace import events_of

__all__ = ["scratch_folder"]

_MEMORY = "/dev/shm"
_MOST_BYTES = 64_000_000  # written by a run
_SPARE = 16  # this many times as much has to be free


def scratch_folder(events: Sequence[Event]) -> str | None:
    """Return the folder for the folders of runs like this one; None for the usual one."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    written = sum(int(str(each.data["size"])) for each in events_of(events, "storage"))
    fits = written <= _MOST_BYTES and shutil.disk_usage(_MEMORY).free >= _SPARE * _MOST_BYTES
    return _MEMORY if fits else None
