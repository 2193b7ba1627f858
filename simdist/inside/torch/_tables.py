"""Tables and settings that modules of torch keep once per process, and that no public function reads."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
from torch import _jit_internal, _tensor_str, _weights_only_unpickler
from torch import _utils as torch_utils
from torch import serialization as _serialization
from torch.fx import _symbolic_trace
from torch.utils import _pytree
from torch.utils.data import dataloader as _dataloader
from torch.utils.data._utils import signal_handling, worker

from simdist.inside._facts import fact
from simdist.inside.torch._bindings import missing

if TYPE_CHECKING:
    from torch.distributed.fsdp._debug_utils import SimpleProfiler

__all__ = ["c10d_logger", "copy_into_each", "decompositions", "find_cpu_count", "fsdp_profiler", "loader_iterators"]
__all__ += [
    "loader_signals",
    "loader_watchdog",
    "loader_worker",
    "overloads",
    "print_options",
    "safe_globals",
    "saved_places",
    "seed_of_workers",
    "set_tracing_flag",
]
__all__ += ["flattening", "rebuilding", "tracing", "tracing_flag", "trees", "unchecked_tensors", "unpickling"]

trees = _pytree
"""`torch.utils._pytree`: how containers are taken apart."""

flattening: ModuleType = importlib.import_module("torch.fx._pytree")
"""How traced programs take containers apart."""

tracing = _symbolic_trace
unpickling = _weights_only_unpickler
rebuilding = torch_utils
"""`torch._utils`: the functions that rebuild a pickled tensor."""

overloads = _jit_internal
"""`torch._jit_internal`: what `_overload` and `_overload_method` register."""

decompositions: ModuleType = importlib.import_module("torch._decomp")
loader_worker = worker
loader_signals = signal_handling
loader_iterators = _dataloader._BaseDataLoaderIter
"""The class of all iterators of loaders, which has `__init__`, `_reset`, `_next_index` and `__next__`."""
loader_watchdog = worker.ManagerWatchdog
"""What a worker of a loader asks with `is_alive`, before it waits for the indices of each batch."""


_TRACING_FLAG = "_is_fx_tracing_flag"  # until torch 2.13; since 2.14 each thread has its own flag


def tracing_flag() -> bool:
    """True if this process traces by `torch.fx`; False if torch has no one flag for all threads."""
    return bool(getattr(tracing, _TRACING_FLAG, False))


def set_tracing_flag(flag: bool) -> None:
    """Set what `tracing_flag` returned."""
    if hasattr(tracing, _TRACING_FLAG):
        setattr(tracing, _TRACING_FLAG, flag)


copy_into_each: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_copy_
"""Copy each tensor of the second list into the one of the first, in one call."""


def fsdp_profiler() -> type[SimpleProfiler]:
    """The class that keeps the timings of FSDP (torch/distributed/fsdp/_debug_utils.py), loaded at the first call."""
    from torch.distributed.fsdp._debug_utils import SimpleProfiler

    return SimpleProfiler


def c10d_logger() -> logging.Logger:
    """The logger of calls of torch.distributed, of torch/distributed/c10d_logger.py."""
    found: logging.Logger = importlib.import_module("torch.distributed.c10d_logger")._c10d_logger
    return found


def print_options() -> dict[str, object]:
    """How tensors are printed (`torch.set_printoptions`), shared."""
    return vars(_tensor_str.PRINT_OPTS)


def safe_globals() -> set[object]:
    """The globals that `torch.serialization.add_safe_globals` has added, shared."""
    return cast("set[object]", _weights_only_unpickler._marked_safe_globals_set)


def unchecked_tensors() -> list[torch.Tensor] | None:
    """The sparse tensors that were unpickled since `torch.load` last checked its own, shared.

    None since torch 2.15, where each thread has its own.
    """
    return getattr(torch_utils, "_sparse_tensors_to_validate", None)


def saved_places() -> list[object]:
    """What `torch.serialization.register_package` has registered, shared."""
    return cast("list[object]", _serialization._package_registry)


def seed_of_workers(iterator: object) -> int | None:
    """Return the seed from which a loader's iterator seeds its workers: worker n has this one plus n."""
    seed = getattr(iterator, "_base_seed", None)
    return seed if type(seed) is int else None


def find_cpu_count() -> int:
    """The processors of this machine, as torchrun counts them; at least 1."""
    return torch_utils.cpu_count() or 1


@fact(
    "torch.tables",
    what="what programs register with torch lies in tables of its modules",
    source="torch/_tensor_str.py, _utils.py, _weights_only_unpickler.py, serialization.py, utils/_pytree.py",
    seen="2.13 to 2.15",
    feature="ranks register what others do not see: print options, safe globals, pytree nodes",
)
def _tables_are_known() -> str:
    return (
        missing(trees, ("SUPPORTED_NODES", "register_pytree_node"))
        or missing(flattening, ("SUPPORTED_NODES", "SUPPORTED_NODES_EXACT_MATCH", "register_pytree_flatten_spec"))
        or missing(unpickling, ("_add_safe_globals", "_clear_safe_globals", "_remove_safe_globals"))
        or missing(decompositions, ("global_decomposition_table", "register_decomposition"))
        or missing(loader_worker, ("_worker_info",))
        or missing(loader_iterators, ("_reset", "_next_index", "__next__"))
        or missing(loader_watchdog, ("is_alive",))
        or missing(rebuilding, ("_rebuild_sparse_tensor",))
        or (unchecked_tensors() is None and missing(rebuilding, ("_get_sparse_tensors_to_validate",)))
        or missing(tracing, ("CURRENT_PATCHER",))
        or (missing(tracing, (_TRACING_FLAG,)) and missing(tracing, ("_is_fx_tracing_tls",)))
        or ("" if print_options() and type(safe_globals()) is set and saved_places() else "a table is of another kind")
    )
