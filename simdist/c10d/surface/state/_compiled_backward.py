"""Compiled backward passes (`torch._dynamo.compiled_autograd`), for ranks that share one process.

C++ has one compiler, one cache and one lock for a process (torch 2.13, python_compiled_autograd.cpp). From the first
context that a rank enters, each rank has its own contexts and compiles for itself. The cache finds a graph that one
rank has captured for all ranks with the same pass: the same kinds of nodes with the same sizes. So each cache entry has
that graph, and the result of each rank's compiler. The cache is cleared before the first rank compiles and after the
world: ranks run nothing that the host has compiled, and the host runs nothing of theirs.

A pass holds the lock while it runs. While one rank parks in its pass, in a collective that a hook calls, no other rank
can begin a pass. Torch would report that as a nested pass; here it is refused, with an alternative.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from simdist.errors import UnsupportedError
from simdist.inside.torch import backward_compilers
from simdist.process import Patches, Replacement, Runtime, SimProcess, Slot, current_process, current_runtime

__all__ = ["MODULE", "install"]

MODULE = "torch._dynamo.compiled_autograd"
# Variables that contexts set while they are active; a rank may park inside a context.
_CONTEXTS: dict[str, Callable[[], object]] = {
    "compiled_autograd_enabled": bool,
    "compiled_autograd_enabled_force_eager": bool,
    "in_compiled_autograd_region": bool,
    "active_disable_ctx": bool,
    "depth": int,
    "COMPILE_COUNTER": itertools.count,
}
_clear_cache: Callable[[], None] = backward_compilers.clear_cache
_Compiler = tuple[Any, bool]  # the function that C++ calls for a backward pass, and whether sizes are dynamic
_Contexts = tuple[dict[str, object], _Compiler]


class _Passes:
    """The compiled passes of a world."""

    def __init__(self) -> None:
        self.graphs: list[_Graph] = []
        self.inside: dict[SimProcess, None] = {}  # processes inside a pass; a killed process stays in it

    def end(self) -> None:
        """Let C++ forget the graphs. It keeps their objects, so these forget the world."""
        _clear_cache()
        for graph in self.graphs:
            graph.made.clear()
        self.graphs.clear()
        self.inside.clear()


class _Graph:
    """A graph that one rank has captured, and the result of each rank's compiler. C++ keeps and calls this object."""

    def __init__(self, captured: object, wrapper: Callable[..., object], passes: _Passes) -> None:
        self.captured = captured
        self.wrapper = wrapper
        self.passes = passes
        self.made: dict[SimProcess | None, object] = {}

    def __call__(self, *inputs: object) -> object:
        """Run a pass of the calling rank, which compiles the graph the first time."""
        process = current_process()
        if process not in self.made:
            module = vars(sys.modules[MODULE])
            module["counters"]["compiled_autograd"]["captures"] += 1  # a real process would have captured it
            next(module["COMPILE_COUNTER"])
            self.made[process] = _present_compiler()[0].args[0](self.captured)
        if process is None:
            return self.wrapper(self.made[process], *inputs)
        inside = self.passes.inside
        inside[process] = None
        try:
            return self.wrapper(self.made[process], *inputs)
        finally:
            inside.pop(process, None)


def _present_compiler() -> _Compiler:
    compiler: _Compiler = backward_compilers.set_autograd_compiler(None, False)  # returns the previous compiler
    backward_compilers.set_autograd_compiler(*compiler)
    return compiler


def _save() -> _Contexts:
    namespace = vars(sys.modules[MODULE])
    compiler = backward_compilers.set_autograd_compiler(None, False)
    return {name: namespace[name] for name in _CONTEXTS if name in namespace}, compiler


def _load(state: _Contexts) -> None:
    values, compiler = state
    vars(sys.modules[MODULE]).update(values)
    backward_compilers.set_autograd_compiler(*compiler)


def _fresh(process: SimProcess, of_host: _Contexts) -> _Contexts:
    return {name: fresh() for name, fresh in _CONTEXTS.items() if name in of_host[0]}, (None, False)


def install(patches: Patches) -> None:
    """Give each rank its own compiled passes, from the first context that a rank enters."""
    patches.redirect(_of_contexts(sys.modules[MODULE]))


@functools.cache
def _of_contexts(module: ModuleType) -> tuple[Replacement, ...]:
    slot: Slot[_Contexts] = Slot("compiled backward passes", _save, _load, _fresh)
    within = (
        Replacement(module.AutogradCompilerInstance, "end_capture", _capturing),
        Replacement(torch.autograd.graph, "_engine_run_backward", _running),
    )

    def following(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def change(*args: object, **kwargs: object) -> object:
            runtime = current_runtime()
            if runtime is not None:
                _begin(runtime, within)
                runtime.separate(slot)
            return original(*args, **kwargs)

        return change

    return tuple(Replacement(module, name, following) for name in ("_enable", "_disable", "reset"))


def _begin(runtime: Runtime, within: tuple[Replacement, ...]) -> None:
    if _Passes not in runtime.extras:
        passes = runtime.extras[_Passes] = _Passes()
        _clear_cache()
        runtime.patches.on_undo(passes.end)
        runtime.patches.redirect(within)
        runtime.patches.wrap(backward_compilers, "clear_cache", _clearing)


def _capturing(original: Callable[..., tuple[Callable[..., object], object]]) -> Callable[..., object]:
    @functools.wraps(original)
    def end_capture(self: Any, outputs: object) -> object:
        process, runtime = current_process(), current_runtime()
        if process is None or runtime is None:
            return original(self, outputs)
        captured, compiler = [], self.compiler_fn

        def compile(graph: object) -> object:
            captured.append(graph)
            return compiler(graph)

        self.compiler_fn = compile
        try:
            wrapper, made = original(self, outputs)
        finally:
            self.compiler_fn = compiler
        passes = runtime.extras[_Passes]
        graph = _Graph(captured[0], wrapper, passes)
        graph.made[process] = made
        passes.graphs.append(graph)
        return operator.call, graph  # the function to call, and its argument before the inputs

    return end_capture


def _running(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def run_backward(*args: object, **kwargs: object) -> object:
        process, runtime = current_process(), current_runtime()
        if process is not None and runtime is not None and vars(sys.modules[MODULE])["compiled_autograd_enabled"]:
            passes = runtime.extras[_Passes]
            others = sorted(each.rank for each in passes.inside if each is not process)
            if others:
                raise UnsupportedError(
                    f"rank {process.rank}: a compiled backward pass begins while rank {others[0]} waits in its own "
                    "(torch._dynamo.compiled_autograd); torch runs one at a time in a process, and simdist's ranks "
                    "share one, with isolate=True too; run it without compiled autograd, or on real processes "
                    "(simdist run --real gloo)"
                )
        return original(*args, **kwargs)

    return run_backward


def _clearing(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def clear_cache() -> None:
        process, runtime = current_process(), current_runtime()
        if process is None or runtime is None:
            original()
            return
        for graph in runtime.extras[_Passes].graphs:  # another rank may be inside a graph that C++ keeps
            graph.made.pop(process, None)

    return clear_cache
