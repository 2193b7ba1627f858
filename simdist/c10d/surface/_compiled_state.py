"""What dynamo has learned and counted, kept apart for each rank.

Dynamo notes in its modules what it has seen of each function: the shapes that changed, and become dynamic when they do
(`pgo`), the numbers of frames, why it stopped, how often it compiled. A process is one rank, so that it learns from its
own calls only. From the first compiled call in a world on each rank has all of this for itself, and begins with what an
import makes; the host's stands again when the world has ended.

Left shared: numbers that only grow and make names unique, tables by code objects that dynamo itself has made, and what
hangs on a code object without a region (`skip_code`).

In doubt: what C++ keeps of compiled backward passes (`torch._dynamo.compiled_autograd`) is one cache for all ranks,
found by the kinds of nodes and their sizes; it can only be cleared as a whole. A pass that a second rank runs alike is
the first one's.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from simdist.inside.torch import backward_compilers
from simdist.process import Patches, Replacement, SimProcess, Slot, current_runtime, when_imported

__all__ = ["LEARNED", "numbered", "reset"]

_DYNAMO = "torch._dynamo"
_METRICS = "torch._inductor.metrics"
_Place = tuple[str, str]
_MISSING = object()

# Variables of a module, which its own functions write: what they are in a new process.
_VARIABLES: dict[_Place, Callable[[], Any]] = {
    (f"{_DYNAMO}.convert_frame", "FRAME_COUNTER"): int,
    (f"{_DYNAMO}.convert_frame", "FRAME_COMPILE_COUNTER"): Counter,
    (f"{_DYNAMO}.utils", "curr_frame"): int,
    (f"{_DYNAMO}.utils", "op_count"): int,
    (f"{_DYNAMO}.utils", "_recompile_user_contexts"): lambda: None,
    (f"{_DYNAMO}.pgo", "_CODE_STATE"): lambda: None,
    (f"{_DYNAMO}.pgo", "_INIT_CODE_STATE"): lambda: None,
    (f"{_DYNAMO}.pgo", "_LOGGED_DYNAMIC_ALLOWLIST"): bool,
    (f"{_DYNAMO}.graph_bytecode_inputs", "CURRENT_STREAM_INDEX"): int,
    ("torch._functorch.aot_autograd", "AOT_COUNTER"): itertools.count,
    ("torch._functorch._aot_autograd.logging_utils", "nth_graph"): int,
    **{
        (_METRICS, name): int
        for name in (
            "codegen_mix_order_reduction",
            "codegen_nested_reduction",
            "cpp_to_dtype_count",
            "generated_cpp_vec_kernel_count",
            "generated_kernel_count",
            "ir_nodes_pre_fusion",
            "num_auto_chunking",
            "num_bytes_accessed",
            "num_comprehensive_padding",
            "num_loop_reordering",
            "num_matches_for_scatter_upon_const_tensor",
            "parallel_reduction_count",
            "rejected_mix_order_reduction_fusion",
        )
    },
}
# Tables that other modules have by name, too, so that what stands in them is exchanged. They begin empty.
_TABLES: tuple[_Place, ...] = (
    *(
        (f"{_DYNAMO}.utils", name)
        for name in (
            "counters",
            "compilation_time_metrics",
            "cumulative_time_spent_ns",
            "guard_failures",
            "graph_break_reasons",
            "optimus_scuba_log",
            "warn_once_cache",
            "_compilation_metrics",
        )
    ),
    (f"{_DYNAMO}.pgo", "_KNOWN_DYNAMIC_SOURCES"),
    *(
        (f"{_DYNAMO}.graph_bytecode_inputs", name)
        for name in ("index_to_bytecode_constructor", "index_to_external_object_weakref", "keep_alive")
    ),
    *((_METRICS, name) for name in ("cpp_outer_loop_fused_inner_counts", "node_runtimes", "nodes_num_elem")),
)
# Of backward passes that are compiled: what contexts set while they last, in which a rank may park.
_BACKWARD = f"{_DYNAMO}.compiled_autograd"
_CONTEXTS: dict[str, Callable[[], Any]] = {
    "compiled_autograd_enabled": bool,
    "compiled_autograd_enabled_force_eager": bool,
    "in_compiled_autograd_region": bool,
    "active_disable_ctx": bool,
    "depth": int,
    "COMPILE_COUNTER": itertools.count,
}
_RESET_TOO = ("guard_failures", "graph_break_reasons", "warn_once_cache")  # by `torch._dynamo.reset`
_State = tuple[list[Any], list[Any], dict[int, Any]]
_numbers: dict[int, Any] = {}  # of the process that runs: what stands for each code's frame state, with that


def _there(place: _Place) -> Any:
    """What stands at a place; `_MISSING` where the module is not imported, or another torch has no such thing."""
    module = sys.modules.get(place[0])
    return _MISSING if module is None else vars(module).get(place[1], _MISSING)


def _save() -> _State:
    global _numbers
    tables = [_there(place) for place in _TABLES]
    return (
        [_there(place) for place in _VARIABLES],
        [None if table is _MISSING or not table else table.copy() for table in tables],
        _numbers,
    )


def _load(state: _State) -> None:
    global _numbers
    values, contents, _numbers = state
    for (place, fresh), value in zip(_VARIABLES.items(), values, strict=True):
        if _there(place) is not _MISSING:
            vars(sys.modules[place[0]])[place[1]] = fresh() if value is _MISSING else value
    for place, content in zip(_TABLES, contents, strict=True):
        table = _there(place)
        if table is not _MISSING and (table or content):
            table.clear()
            if content:
                (table.update if hasattr(table, "update") else table.extend)(content)


def _fresh(process: SimProcess, of_host: _State) -> _State:
    return [fresh() for fresh in _VARIABLES.values()], [None] * len(_TABLES), {}


LEARNED: Slot[_State] = Slot("what dynamo learned", _save, _load, _fresh)


def numbered(frame_state: dict[str, Any]) -> dict[str, Any]:
    """What the running process keeps in place of a code object's frame state, which is one for all: its number."""
    return _numbers.setdefault(id(frame_state), (frame_state, {}))[1]  # type: ignore[no-any-return]


_Compiler = tuple[Any, Any]  # what C++ calls for a backward pass, and whether its sizes are dynamic
_Contexts = tuple[dict[str, Any], _Compiler]


def _save_contexts() -> _Contexts:
    namespace = vars(sys.modules[_BACKWARD])
    compiler = backward_compilers.set_autograd_compiler(None, False)  # it gives what was set before
    return {name: namespace[name] for name in _CONTEXTS if name in namespace}, compiler


def _load_contexts(state: _Contexts) -> None:
    values, compiler = state
    vars(sys.modules[_BACKWARD]).update(values)
    backward_compilers.set_autograd_compiler(*compiler)


def _fresh_contexts(process: SimProcess, of_host: _Contexts) -> _Contexts:
    return {name: fresh() for name, fresh in _CONTEXTS.items() if name in of_host[0]}, (None, False)


def _tell_of_backward(patches: Patches) -> None:
    patches.redirect(_of_backward(sys.modules[_BACKWARD]))


@functools.cache
def _of_backward(backward: Any) -> tuple[Replacement, ...]:
    """The contexts of compiled backward passes are each rank's own from the first that a rank enters."""
    slot: Slot[_Contexts] = Slot("compiled backward passes", _save_contexts, _load_contexts, _fresh_contexts)

    def following(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            runtime = current_runtime()
            if runtime is not None:
                runtime.separate(slot)
            return original(*args, **kwargs)

        return change

    return tuple(Replacement(backward, name, following) for name in ("_enable", "_disable", "reset"))


when_imported(_BACKWARD, _tell_of_backward)


def reset() -> None:
    """Forget what the running process has learned, as `torch._dynamo.reset` does."""
    _numbers.clear()
    for (module, name), fresh in _VARIABLES.items():
        if module != _METRICS and name != "_recompile_user_contexts" and _there((module, name)) is not _MISSING:
            vars(sys.modules[module])[name] = fresh()
    for place in _TABLES:
        table = _there(place)
        if place[1] in _RESET_TOO and table is not _MISSING:
            table.clear()
