"""Which calls of torch.distributed a simulated rank can make: a table for people and for a test.

`FUNCTIONS` holds every public function of `torch.distributed` and `distributed_c10d`, `METHODS` every method of
`ProcessGroup` and `ProcessGroupGloo`, of every supported torch version. `tests/test_completeness.py` fails for a call
of the installed torch that is in neither table, and checks each entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from simdist.c10d.calls import METHODS as _METHODS
from simdist.c10d.calls import RENAMED, TABLE

__all__ = ["FUNCTIONS", "METHODS", "Coverage"]

Status = Literal["supported", "refused", "local"]


@dataclass(frozen=True, slots=True)
class Coverage:
    """The effect of one call on a simulated rank.

    "supported": it works as on real Gloo. "refused": it raises `error` with the text `says`; `real` is True if real
    Gloo raises that too. "local": it reads or sets something on the rank itself, without communication.
    """

    status: Status
    error: str = ""
    says: str = ""
    real: bool = False


_SUPPORTED = Coverage("supported")
_LOCAL = Coverage("local")


def _gloo_lacks(says: str, error: str = "RuntimeError") -> Coverage:
    return Coverage("refused", error, says, real=True)


def _not_simulated(says: str) -> Coverage:
    return Coverage("refused", "UnsupportedError", says)


def _table(
    supported: Iterable[str], local: Iterable[str], refused: Mapping[str, Coverage]
) -> MappingProxyType[str, Coverage]:
    whole = dict.fromkeys(supported, _SUPPORTED) | dict.fromkeys(local, _LOCAL) | dict(refused)
    return MappingProxyType(dict(sorted(whole.items())))


_CALLS = tuple(name for row in TABLE if row.methods for name in (row.name, *row.functions))

FUNCTIONS = _table(
    supported=(
        *_CALLS,
        "breakpoint",
        "destroy_process_group",
        "init_device_mesh",
        "init_process_group",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "rendezvous",
    ),
    local=(
        "GroupName",  # a type for annotations
        "get_backend",
        "get_backend_config",
        "get_backend_impl",
        "get_debug_level",
        "get_default_backend_for_device",
        "get_global_rank",
        "get_group_rank",
        "get_node_local_rank",
        "get_pg_count",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "has_torch_function",
        "is_available",
        "is_backend_available",
        "is_gloo_available",
        "is_initialized",
        "is_mpi_available",
        "is_nccl_available",
        "is_torchelastic_launched",
        "is_ucc_available",
        "is_xccl_available",
        "record_comm",
        "register_rendezvous_handler",
        "set_debug_level",
        "set_debug_level_from_env",
        "set_timeout",
        "supports_complex",
    ),
    refused={
        "gather_into_tensor": _gloo_lacks("Backend gloo does not support gather_single"),
        "gather_single": _gloo_lacks("Backend gloo does not support gather_single"),
        "shrink_group": _gloo_lacks("does not support shrinking operations", "TypeError"),
        "split_group": _gloo_lacks("No device associated with the default pg, not safe to split any process groups"),
    },
)

METHODS = _table(
    supported=(*_METHODS, *RENAMED, "abort", "merge_remote_group", "shutdown", "split_group"),
    local=(
        "_add_ephemeral_timeout",
        "_enable_collectives_timing",
        "_get_backend",
        "_get_backend_name",
        "_get_sequence_number_for_group",
        "_has_hooks",
        "_id",
        "_register_backend",
        "_set_default_backend",
        "_set_default_timeout",
        "_set_group_desc",
        "_set_group_name",
        "_set_group_uid",
        "_set_sequence_number_for_group",
        "boxed",
        "create_default_device",
        "create_device",
        "eager_connect_single_device",
        "get_backend",
        "get_error",
        "get_group_store",
        "name",
        "rank",
        "set_timeout",
        "setUsePgForSymmMemRendezvous",
        "size",
        "supports_tensor_alloc",
        "unbox",
    ),
    refused={
        "_backend_id": _not_simulated("has no C++ backend"),
        "_end_coalescing": _gloo_lacks("Backend gloo does not implement endCoalescing"),
        "_end_time_estimate": _gloo_lacks("Backend gloo does not support time estimation"),
        "_register_on_completion_hook": _gloo_lacks(
            "Only ProcessGrouppNCCL supports onCompletion hook, but got gloo backend."
        ),
        "_start_coalescing": _gloo_lacks("Backend gloo does not implement startCoalescing"),
        "_start_time_estimate": _gloo_lacks("Backend gloo does not support time estimation"),
        "_wait_for_pending_works": _gloo_lacks(
            "Only ProcessGrouppNCCL supports waitForPendingWorks, but got gloo backend."
        ),
        "allreduce_sparse": _not_simulated("use all_reduce, which takes sparse tensors"),
        "allocate_tensor": _gloo_lacks("Backend gloo does not support allocateTensor"),
        "gather_into_tensor": _gloo_lacks("Backend gloo does not support gather_single"),
        "gather_single": _gloo_lacks("Backend gloo does not support gather_single"),
        "get_reconfigure_handle": _not_simulated("make it anew"),
        "memory_stats": _gloo_lacks("Backend gloo does not support getMemoryStats"),
        "merge": _not_simulated("merge_remote_group"),
        "new_window": _gloo_lacks("Backend gloo does not support new_window"),
        "reconfigure": _not_simulated("make it anew"),
        "register_abort_hook": _gloo_lacks("Backend gloo does not support registerAbortHook"),
        "register_post_hook": _not_simulated("wrap the functions of torch.distributed"),
        "register_pre_hook": _not_simulated("wrap the functions of torch.distributed"),
        "resume": _gloo_lacks("Backend gloo does not support resume"),
        "shrink": _gloo_lacks("Backend gloo does not support shrink"),
        "split": _not_simulated("split_group"),
        "suspend": _gloo_lacks("Backend gloo does not support suspend"),
        "unregister_abort_hook": _gloo_lacks("Backend gloo does not support unregisterAbortHook"),
        "unregister_post_hook": _not_simulated("wrap the functions of torch.distributed"),
        "unregister_pre_hook": _not_simulated("wrap the functions of torch.distributed"),
    },
)
