"""Where the files of a sweep's runs lie: in memory, if they are small.

A rename over another file, as each checkpoint ends with one, makes ext4 write the bytes to the real disk, and nobody
needs them there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from simdist.result import Event
from simdist.trace import events_of

__all__ = ["scratch_folder"]

_MEMORY = "/dev/shm"
_MOST_BYTES = 64_000_000  # that a run writes
_SPARE = 16  # times as much has to be free


def scratch_folder(events: Sequence[Event]) -> str | None:
    """The folder in which runs like this one make theirs; None for the usual one."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    written = sum(int(str(each.data["size"])) for each in events_of(events, "storage"))
    fits = written <= _MOST_BYTES and shutil.disk_usage(_MEMORY).free >= _SPARE * _MOST_BYTES
    return _MEMORY if fits else None
