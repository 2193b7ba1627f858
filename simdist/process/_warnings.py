"""A rank's own warning filters.

`warnings.catch_warnings`, and `pytest.warns` above it, saves the module's filters on entry and puts them back on exit.
Ranks that are inside at the same time would put back each other's. So from the first moment that a rank touches the
filters, each has its own, swapped when the baton changes hands; a world in which none does pays nothing.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, Runtime, current_runtime

__all__ = ["install"]

_State = tuple[list[Any], Any, Any]

_module: Any = warnings  # has what the stubs leave out
_filters_changed: Callable[[], None] = getattr(_module, "_filters_mutated", None) or _module._filters_mutated_lock_held


class _Swapper:
    """Whose filters are in the module: the host's, or those of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._host = _save()
        self._of: dict[SimProcess, _State] = {}
        running = runtime.simulation.current
        assert running is not None
        self.swap(None, running.context)
        runtime.simulation.also_on_switch(self.swap)

    def swap(self, leaving: SimProcess | None, entering: SimProcess | None) -> None:
        if leaving is not None:
            self._of[leaving] = _save()
        if entering is None:
            _load(self._host)
            return
        filters, *rest = self._host
        _load(self._of.get(entering) or (list(filters), rest[0], rest[1]))


def _save() -> _State:
    return _module.filters, _module.showwarning, _module._showwarnmsg_impl


def _load(state: _State) -> None:
    _module.filters, _module.showwarning, _module._showwarnmsg_impl = state
    _filters_changed()


def _separating(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def touch(*args: Any, **kwargs: Any) -> Any:
        runtime = current_runtime()
        if runtime is not None and _Swapper not in runtime.extras:
            runtime.extras[_Swapper] = _Swapper(runtime)
        return original(*args, **kwargs)

    return touch


def install(patches: Patches) -> None:
    """Watch for a rank that touches the filters."""
    patches.wrap(warnings.catch_warnings, "__enter__", _separating)
    for name in ("simplefilter", "filterwarnings", "resetwarnings"):
        patches.wrap(warnings, name, _separating)
