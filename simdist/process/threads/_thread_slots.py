"""State that `threading` and `concurrent.futures` keep per interpreter: slots, from a rank's first thread or pool."""

from __future__ import annotations

import concurrent.futures.thread as pools
import sys
import threading
from collections.abc import Callable

from simdist.process._process import SimProcess
from simdist.process._slots import Slot

__all__ = ["HOOK_SLOT", "POOLS_SLOT", "POOL_MODULES", "PROCESS_POOLS_SLOT"]

_Hook = Callable[[threading.ExceptHookArgs], object]


def _save_hook() -> _Hook:
    return threading.excepthook


def _load_hook(hook: _Hook) -> None:
    threading.excepthook = hook


def _fresh_hook(process: SimProcess, host: _Hook) -> _Hook:
    return threading.__excepthook__


HOOK_SLOT: Slot[_Hook] = Slot("threading.excepthook", _save_hook, _load_hook, _fresh_hook)


def _save_pools() -> bool:
    shut: bool = vars(pools)["_shutdown"]
    return shut


def _load_pools(shut: bool) -> None:
    vars(pools)["_shutdown"] = shut


def _fresh_pools(process: SimProcess, host: bool) -> bool:
    return host


POOLS_SLOT: Slot[bool] = Slot("concurrent.futures", _save_pools, _load_pools, _fresh_pools)
POOL_MODULES = ("concurrent.futures.thread", "concurrent.futures.process")


def _save_process_pools() -> bool:
    shut: bool = vars(sys.modules[POOL_MODULES[1]])["_global_shutdown"]
    return shut


def _load_process_pools(shut: bool) -> None:
    vars(sys.modules[POOL_MODULES[1]])["_global_shutdown"] = shut


PROCESS_POOLS_SLOT: Slot[bool] = Slot(POOL_MODULES[1], _save_process_pools, _load_process_pools, _fresh_pools)
