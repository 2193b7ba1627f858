"""Libraries that replace Python's clock, on ranks.

time_machine takes what is called `time.time`, `datetime.datetime.now` and so on for functions in C, and changes their
pointers. While a world lives, functions in Python have these names, and the process would crash. If a rank is the first
to import it, it has kept these functions as the original ones; so the host imports it anew after the world.

freezegun puts its own functions into every module, which ranks share; so a rank may use it only if it is alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from simdist.errors import UnsupportedError
from simdist.process._refusals import refused
from simdist.process._runtime import Patches, current_process, current_runtime

__all__ = ["ADAPTERS"]

_PACKAGES = ("_time_machine", "time_machine")
_PATCHES = ("patch", "patch_if_needed")  # of version 3, and before
_ANOTHER_MOMENT = "let the run begin at another moment, with start_time=..."


def _of_time_machine(patches: Patches) -> None:
    module = sys.modules["_time_machine"]
    text = f"time_machine changes functions in C, and the clock of ranks is in Python; {_ANOTHER_MOMENT}"
    for name in _PATCHES:
        if hasattr(module, name):
            patches.wrap(module, name, refused(text))
    if current_process() is not None:
        patches.on_undo(_forget)


def _forget() -> None:
    for name in _PACKAGES:
        sys.modules.pop(name, None)


def _of_freezegun(patches: Patches) -> None:
    kind = getattr(sys.modules["freezegun.api"], "_freeze_time", None)
    if kind is not None:
        patches.wrap(kind, "start", _alone)


def _alone(start: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(start)
    def refuse(self: Any, *args: Any, **kwargs: Any) -> object:
        process, runtime = current_process(), current_runtime()
        others = () if runtime is None else (each for each in runtime.processes.values() if each is not process)
        if process is not None and any(each.running for each in others):
            raise UnsupportedError(
                f"rank {process.rank}: freezegun replaces the clock in all modules, which other processes of the run "
                f"use, too; {_ANOTHER_MOMENT}"
            )
        return start(self, *args, **kwargs)

    return refuse


ADAPTERS: dict[str, Callable[[Patches], None]] = {
    "_time_machine": _of_time_machine,
    "freezegun.api": _of_freezegun,
}
"""By module: called once it is imported."""
