"""A rank's own temporary names and folder.

Module `tempfile` keeps the folder that it has found and the generator of its names. From the first moment that a rank
asks for either, each rank has its own: names drawn from its entropy, and the folder that its own TMPDIR names. (Setting
`tempfile.tempdir` does not count as asking: a rank that does so before any rank has asked sets it for all ranks, though
never for the host.)
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_process, current_runtime
from simdist.process._slots import Slot
from simdist.process.stdlib._environ import encoded_name, host_environ

__all__ = ["FOLDER_SLOT", "install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_State = tuple[str | None, Iterator[str] | None]
_FOLDERS = ("TMPDIR", "TEMP", "TMP")

_module: Any = tempfile  # has what the stubs leave out


def _save() -> _State:
    return _module.tempdir, _module._name_sequence


def _load(state: _State) -> None:
    _module.tempdir, _module._name_sequence = state


def _fresh(process: SimProcess, host: _State) -> _State:
    own, hosts = process.environ, host_environ()
    alike = all(own.get(key) == hosts.get(key) for key in map(encoded_name, _FOLDERS))
    return host[0] if alike else None, None


FOLDER_SLOT: Slot[_State] = Slot("tempfile", _save, _load, _fresh)


def _separating(original: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(original)
    def look(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(*args, **kwargs)
        if not imported_for_all(sys._getframe(1)):
            runtime.separate(FOLDER_SLOT)
        drawn = dict(process.entropy)
        result = original(*args, **kwargs)
        # Looking for a folder draws a name; whether that is needed depends on what the host has done before.
        process.entropy = drawn
        return result

    return look


_REPLACEMENTS = tuple(
    Replacement(tempfile, name, _separating)
    for name in ("_get_candidate_names", "_gettempdir")
    if hasattr(tempfile, name)
)


def install(patches: Patches) -> None:
    """Watch for a rank that wants a temporary name."""
    patches.replace(tempfile, "tempdir", tempfile.tempdir)  # a rank may set it
    patches.redirect(_REPLACEMENTS)
