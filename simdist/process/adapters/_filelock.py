"""filelock on a rank: another rank is no child that was forked from it.

filelock notices in a new process that it was forked, by its pid, and closes the files of the locks that its parent
holds. Ranks have pids of their own and share the module, so each would close the others' files.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from simdist.process._runtime import Patches, current_process

__all__ = ["tell"]


def tell(patches: Patches) -> None:
    """Let ranks leave each other's locks alone; versions that look at no pid do."""
    module = sys.modules.get("filelock._api")
    if hasattr(module, "_reset_child_after_fork"):
        patches.wrap(module, "_reset_child_after_fork", _of_host_alone)


def _of_host_alone(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def reset() -> None:
        if current_process() is None:
            original()

    return reset
