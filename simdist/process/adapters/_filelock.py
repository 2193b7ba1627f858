"""filelock on a rank: another rank is no child that was forked from it.

filelock notices in a new process that it was forked, by its pid, and closes the files of the locks that its parent
holds. Ranks have pids of their own and share the module, so each would close the others' files.
"""

from __future__ import annotations

import sys

from simdist.inside.python import Redirection
from simdist.process._runtime import Patches, on_ranks

__all__ = ["adapt"]


# The functions that look at the pid, by the module that has it, which depends on filelock's version.
_LOOK_AT_PID = {"filelock._core._fork": "ensure_current_process", "filelock._api": "_reset_child_after_fork"}


def adapt(patches: Patches) -> None:
    """Let ranks leave each other's locks alone; versions of filelock that look at no pid do so anyway."""
    for module, name in _LOOK_AT_PID.items():
        function = getattr(sys.modules.get(module), name, None)
        if function is not None:  # redirect it, as filelock's other modules import it by name
            patches.switch_on([Redirection.of(function, on_ranks(lambda *_, **__: None))])
