"""Autograd's engine and its futures, as C++ keeps them for each thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import core_bindings, missing

__all__ = ["BaseFuture", "backward_engine", "backward_node", "backward_task", "pass_by_subclasses", "profiler_settings"]
__all__ += ["future_values", "set_backward_threads"]

backward_task: Callable[[], int] = core_bindings._current_graph_task_id
"""The number of the backward pass that the calling thread is in; -1 outside."""

backward_node: Callable[[], object] = core_bindings._current_autograd_node
"""The node of the graph that the calling thread is in; None outside."""

backward_engine = torch.autograd.Variable._execution_engine

BaseFuture = torch._C.Future
"""The base of `torch.futures.Future`: futures that C++ makes are of this class."""

future_values: ModuleType = torch._jit_internal
"""C++ calls its `_extract_tensors` for the value of a Python future (torch/csrc/jit/python/python_ivalue.h)."""

set_backward_threads: Callable[[bool], None] = core_bindings._set_multithreading_enabled
"""Whether the calling thread's backward passes use threads of C++, as `torch.autograd.set_multithreading_enabled`."""

pass_by_subclasses: Callable[[], AbstractContextManager[object]] = core_bindings.DisableTorchFunctionSubclass


def profiler_settings() -> object:
    """The defaults of the profiler's settings that have no public name."""
    return core_bindings._profiler._ExperimentalConfig()


@fact(
    "torch.autograd.tasks",
    what="a thread knows which backward pass it is in",
    source="torch/csrc/autograd/init.cpp, _current_graph_task_id",
    seen="2.13, 2.14",
    feature="DDP's and FSDP's hooks wait where torch's do",
)
def _tasks_are_known() -> str:
    found: list[int] = []
    weight: Any = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: found.append(backward_task()))
    weight.sum().backward()
    if backward_task() != -1 or found == [-1]:
        return f"outside of backward {backward_task()}, inside {found}"
    return missing(backward_engine, ("queue_callback",)) or missing(BaseFuture, ("wait", "done"))
