"""One tree of loggers, with settings for each process.

The loggers stay those of the host, so that a rank's configuration also holds for torch's own. From a rank's first
change of a logger on, the dictionary behind that logger is exchanged at each hand-over. A change by a module that all
ranks share, while one of them imports it, is made for all processes and the host: no other process imports it again.

In doubt: handlers are objects that all share; one that a rank's `basicConfig(force=True)` closes is closed for all.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from simdist.process._imports import imported_for_all
from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, current_process

__all__ = ["LoggingViews"]

_CHANGES = ("setLevel", "addHandler", "removeHandler", "addFilter", "removeFilter", "__setattr__")
_SETTINGS = ("level", "propagate", "disabled", "handlers", "filters")
_State = dict[str, Any]
_T = TypeVar("_T")


class LoggingViews:
    """The settings of each process on each changed logger."""

    def __init__(self, patches: Patches) -> None:
        self._of_host: dict[logging.Logger, _State] = {}  # of the loggers that a rank has changed
        self._of_rank: dict[tuple[SimProcess, logging.Logger], _State] = {}
        self._present: SimProcess | None = None
        self._patches = patches

    def install(self) -> None:
        """Notice changes from now on."""
        for name in _CHANGES:
            self._patches.replace(logging.Logger, name, self._noticing(getattr(logging.Logger, name)))

    def restore(self) -> None:
        """Put back the host's settings."""
        self.switch(None)
        self._of_host.clear()
        self._of_rank.clear()
        manager: Any = logging.root.manager
        manager._clear_cache()

    def switch(self, entering: SimProcess | None) -> None:
        """Exchange settings when the baton goes to another process, or to the host."""
        for logger, of_host in self._of_host.items():
            if self._present is not None:
                self._of_rank[self._present, logger] = logger.__dict__
            state = of_host
            if entering is not None:
                state = self._of_rank.get((entering, logger)) or _fresh(of_host)
            object.__setattr__(logger, "__dict__", state)
        self._present = entering

    def inherit(self, child: SimProcess) -> None:
        """Give a forked child of the process with the baton that process's settings."""
        for logger in self._of_host:
            self._of_rank[child, logger] = _fresh(logger.__dict__)

    def _noticing(self, original: Callable[..., _T]) -> Callable[..., _T]:
        @functools.wraps(original)
        def change(logger: logging.Logger, *args: object, **kwargs: object) -> _T:
            matters = "_cache" in logger.__dict__ and (original.__name__ != "__setattr__" or args[0] in _SETTINGS)
            if not matters or current_process() is None:
                return original(logger, *args, **kwargs)
            if imported_for_all(sys._getframe(1)):
                return self._change_for_all(original, logger, *args, **kwargs)
            if logger not in self._of_host:
                if not self._of_host:
                    self._patches.replace(logging.Logger, "isEnabledFor", _is_enabled)
                self._of_host[logger] = logger.__dict__
                object.__setattr__(logger, "__dict__", _fresh(logger.__dict__))
            return original(logger, *args, **kwargs)

        return change

    def _change_for_all(
        self, original: Callable[..., _T], logger: logging.Logger, *args: object, **kwargs: object
    ) -> _T:
        done = original(logger, *args, **kwargs)
        if logger in self._of_host:
            here = logger.__dict__
            states = [self._of_host[logger], *(state for (_, each), state in self._of_rank.items() if each is logger)]
            for state in states:
                if state is not here:
                    object.__setattr__(logger, "__dict__", state)
                    original(logger, *args, **kwargs)
            object.__setattr__(logger, "__dict__", here)
        return done


def _fresh(state: _State) -> _State:
    return state | {"handlers": list(state["handlers"]), "filters": list(state["filters"]), "_cache": {}}


def _is_enabled(logger: logging.Logger, level: int) -> bool:
    # Without the logger's cache, which depends on every logger above it.
    return bool(not logger.disabled and logger.manager.disable < level >= logger.getEffectiveLevel())
