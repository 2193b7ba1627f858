"""The works of a thread, as long as something holds them.

A functional collective leaves its work in a table of C++, under the storage of its result, until the program waits for
the result. A work that nobody waits for stays there until the process ends, and then torch warns. The table belongs to
the thread, and C++ keeps the tables of ended threads. It would keep the work's world and tensors, too, and warn when
the host ends. So a thread of a rank empties its table at its end.

The table can only be emptied by waiting for what is in it, which here must neither park nor be reported. So each work
is of a class that does nothing then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from simdist.c10d.calls._log import log
from simdist.c10d.calls._remembered import Remembered
from simdist.inside.torch import Place, c10d_bindings, functional_operators
from simdist.process import SimProcess

__all__ = ["KeptWorks", "keep"]


class _Issued(Protocol):
    """A `SimWork`."""

    process: SimProcess
    outputs: Any


class KeptWorks(Remembered[_Issued]):
    """The works that one thread has issued and that have a C++ object. Called when the thread ends."""

    __slots__ = ()

    def __call__(self) -> None:
        """Empty the thread's table."""
        if not _unwaited():
            return
        works = list(self)
        kinds = [type(work) for work in works]
        for work, kind in zip(works, kinds, strict=True):
            work.__class__ = _left_behind(kind)
        for work in works:
            for result in _tensors(work.outputs):
                functional_operators.wait_tensor(result)  # waits for all works of its storage
        for work, kind in zip(works, kinds, strict=True):
            work.__class__ = kind


def keep(work: _Issued) -> None:
    """Remember a new work, on the thread that has issued it."""
    task = work.process.simulation.current
    if task is None:
        return
    works: Any = task.at_end
    if works is None:
        works = task.at_end = KeptWorks()
        if task is work.process.main:
            work.process.at_exit.insert(0, (_warn, (work.process,), {}))  # torch warns when all else has ended
    works.add(work)


@functools.cache
def _left_behind(kind: type[_Issued]) -> type[_Issued]:
    """The class of a work whose waits do nothing."""
    return type(kind.__name__, (kind,), {"__slots__": (), "wait": lambda self, timeout=None: True})


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, list | tuple):
        for each in outputs:
            yield from _tensors(each)


def _unwaited() -> int:
    count: int = c10d_bindings._get_work_registry_size()
    return count


def _warn(process: SimProcess) -> None:
    count = _unwaited()
    if count:
        log(
            process,
            "W",
            f"Warning: At the time of process termination, there are still {count} unwaited collective calls. "
            "Please review your program to ensure that:\n"
            "1. c10d_functional.wait_tensor() is invoked on all tensors returned from c10d_functional collective,\n"
            "2. c10d_functional.wait_tensor() is invoked on all output tensors of async_op=True torch.distributed "
            "collective called under `with allow_inflight_collective_as_graph_input_ctx():`,\n"
            "before the output tensors of the collective are used. (function ~WorkRegistry)",
            Place.WORKS_UNWAITED,
        )
