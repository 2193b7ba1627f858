"""The facts and counts that dynamo keeps, separate for each rank.

Dynamo keeps facts about each function in its modules: shapes that have changed and so become dynamic (`pgo`), numbers
of frames, reasons for graph breaks, numbers of compilations. On a real cluster a process is one rank, and learns only
from its own calls. From the first compiled call in a world on, each rank has its own copies, which begin in the state
after an import. The host's values return when the world has ended.

Still shared: counters that only grow and make names unique, tables by code objects that dynamo itself has made, and
attributes of a code object without a region (`skip_code`).
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from simdist.process import SimProcess, Slot

__all__ = ["LEARNED", "numbered", "reset"]

_DYNAMO = "torch._dynamo"
_METRICS = "torch._inductor.metrics"
_Place = tuple[str, str]
_MISSING = object()

# Variables of a module, which only its own functions write, each with its value in a new process.
_VARIABLES: dict[_Place, Callable[[], object]] = {
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
# Tables that other modules also import by name, so that their contents are exchanged. They begin empty.
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
_RESET_TOO = ("guard_failures", "graph_break_reasons", "warn_once_cache")  # by `torch._dynamo.reset`
_Numbers = dict[int, tuple[dict[str, object], dict[str, object]]]
_State = tuple[list[object], list[Any], _Numbers]
_numbers: _Numbers = {}  # of the running process: by the id of each frame state, that state and its replacement


def _there(place: _Place) -> Any:
    """Return the value of a place; `_MISSING` if the module is not imported, or this torch has no such name."""
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


def numbered(frame_state: dict[str, object]) -> dict[str, object]:
    """Return the running process's replacement of a code object's frame state (its number), which ranks share."""
    return _numbers.setdefault(id(frame_state), (frame_state, {}))[1]


def reset() -> None:
    """Reset the running process's facts and counts, as `torch._dynamo.reset` does."""
    _numbers.clear()
    for (module, name), fresh in _VARIABLES.items():
        if module != _METRICS and name != "_recompile_user_contexts" and _there((module, name)) is not _MISSING:
            vars(sys.modules[module])[name] = fresh()
    for place in _TABLES:
        table = _there(place)
        if place[1] in _RESET_TOO and table is not _MISSING:
            table.clear()
