"""asyncio's event loops: their tasks are counted per process, and none outlives its process.

A process that ends leaves its loops as they are. Here they are still objects of the host, whose finalizers would close
them after their sockets are gone, and print errors of that. So they count as closed from the end of their process on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

from simdist.process._process import SimProcess
from simdist.process._runtime import Patches, current_process, current_runtime
from simdist.process.threads._threads import threads_of

__all__ = ["NAME", "adapt"]

NAME = "asyncio.base_events"

_T = TypeVar("_T")


class _Loops:
    """The event loops that each process of a world has made."""

    def __init__(self) -> None:
        self._made: dict[SimProcess, WeakSet[Any]] = {}

    def add(self, process: SimProcess, loop: object) -> None:
        made = self._made.get(process)
        if made is None:
            made = self._made[process] = WeakSet()
            process.end_listeners[self._on_end] = None
        made.add(loop)

    def _on_end(self, process: SimProcess) -> None:
        for loop in self._made.pop(process):
            loop._closed = True


def _noting(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def __init__(self: object, *args: object, **kwargs: object) -> None:
        begin(self, *args, **kwargs)
        process, runtime = current_process(), current_runtime()
        if process is not None and runtime is not None:
            loops = runtime.extras.get(_Loops)
            if loops is None:
                loops = runtime.extras[_Loops] = _Loops()
            loops.add(process, self)

    return __init__


def _naming(create: Callable[..., _T]) -> Callable[..., _T]:
    """For an event loop's method that names a task: count per process, where asyncio has one count for all."""

    @functools.wraps(create)
    def create_task(self: object, coro: object, *, name: object = None, **kwargs: object) -> _T:
        process = None if name is not None else current_process()
        if process is not None:
            name = f"Task-{threads_of(process).loop_task_number()}"
        return create(self, coro, name=name, **kwargs)

    return create_task


def adapt(patches: Patches) -> None:
    """Let loops of ranks count their own tasks, and end with their process."""
    kind = vars(sys.modules[NAME])["BaseEventLoop"]
    patches.wrap(kind, "create_task", _naming)
    patches.wrap(kind, "__init__", _noting)
