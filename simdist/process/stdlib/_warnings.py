"""A rank's own warning filters.

`warnings.catch_warnings`, and `pytest.warns` above it, saves the module's filters on entry and puts them back on exit.
Ranks that are inside at the same time would put back each other's. So from the first moment that a rank touches the
filters, each has its own, swapped when the baton changes hands; a world in which none does pays nothing. A module that
all ranks share sets its filters for all of them, and for good, when the first imports it; in doubt, for if any rank has
filters of its own by then, only the one that imports it gets them.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Replacement, current_runtime
from simdist.process._slots import Slot

__all__ = ["FILTERS_SLOT", "install"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_State = tuple[list[tuple[object, ...]], Callable[..., object], Callable[..., object]]

_module: Any = warnings  # has what the stubs leave out
_filters_changed: Callable[[], None] = getattr(_module, "_filters_mutated", None) or _module._filters_mutated_lock_held


def _save() -> _State:
    return _module.filters, _module.showwarning, _module._showwarnmsg_impl


def _load(state: _State) -> None:
    _module.filters, _module.showwarning, _module._showwarnmsg_impl = state
    _filters_changed()


def _fresh(process: SimProcess, host: _State) -> _State:
    return list(host[0]), host[1], host[2]


FILTERS_SLOT: Slot[_State] = Slot("warnings", _save, _load, _fresh)


def _separating(original: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(original)
    def touch(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        runtime = current_runtime()
        if runtime is not None and not imported_for_all(sys._getframe(1)):
            runtime.separate(FILTERS_SLOT)
        return original(*args, **kwargs)

    return touch


_REPLACEMENTS = (
    Replacement(warnings.catch_warnings, "__enter__", _separating),
    *(Replacement(warnings, name, _separating) for name in ("simplefilter", "filterwarnings", "resetwarnings")),
)


def install(patches: Patches) -> None:
    """Watch for a rank that touches the filters."""
    patches.redirect(_REPLACEMENTS)
