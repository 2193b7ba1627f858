"""The names by which a fault's `op` can mean an operation: those of events, and those that programs call.

An event has the name of what the backend does: `dist.all_gather_object` is two `all_gather` there, `dist.isend` a
`send`. A fault may say either; a name that is neither would never strike, and is refused. (Names of torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ALIASES", "EFFECTS", "OPERATIONS", "STORAGE", "STORE", "effects_of", "operations_of"]

OPERATIONS = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "sparse_all_reduce",
)

# What programs call, and the operations that come of it. Those of torch.distributed that send an object or a list send
# sizes first: each message counts. Of `gather_object` and `scatter_object_list` the sizes go by another operation,
# which is not meant.
ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_gather_coalesced": ("all_gather",),
        "all_gather_into_tensor": ("all_gather",),
        "all_gather_into_tensor_coalesced": ("all_gather",),
        "all_gather_object": ("all_gather",),
        "all_gather_single": ("all_gather",),
        "all_gather_single_autograd": ("all_gather",),
        "all_gather_single_coalesced": ("all_gather",),
        "all_gather_tensor": ("all_gather",),
        "all_gather_tensor_autograd": ("all_gather",),
        "all_reduce": ("all_reduce", "sparse_all_reduce"),
        "all_reduce_coalesced": ("all_reduce",),
        "all_to_all_single": ("all_to_all",),
        "all_to_all_single_autograd": ("all_to_all",),
        "allgather": ("all_gather",),
        "allreduce": ("all_reduce", "sparse_all_reduce"),
        "alltoall": ("all_to_all",),
        "alltoall_base": ("all_to_all",),
        "batch_isend_irecv": ("send", "recv"),
        "broadcast_object_list": ("broadcast",),
        "gather_into_tensor": ("gather",),
        "gather_object": ("gather",),
        "gather_single": ("gather",),
        "irecv": ("recv",),
        "isend": ("send",),
        "permute_tensor": ("all_to_all",),
        "recv_object_list": ("recv",),
        "reduce_scatter_single": ("reduce_scatter",),
        "reduce_scatter_single_autograd": ("reduce_scatter",),
        "reduce_scatter_single_coalesced": ("reduce_scatter",),
        "reduce_scatter_tensor": ("reduce_scatter",),
        "reduce_scatter_tensor_autograd": ("reduce_scatter",),
        "reduce_scatter_tensor_coalesced": ("reduce_scatter",),
        "scatter_object_list": ("scatter",),
        "send_object_list": ("send",),
    }
)


# What changes a simulated disk, as events name it; and a name for all of them.
EFFECTS = (
    "create",
    "fdatasync",
    "fsync",
    "fsync_dir",
    "link",
    "mkdir",
    "rename",
    "rmdir",
    "symlink",
    "sync",
    "truncate",
    "unlink",
    "write",
)
STORAGE = "storage"
STORE = "store"
"""Any request of a rank to a store."""


def effects_of(op: str | None) -> tuple[str, ...]:
    """The effects on a disk that `op` means, as events name them; none if it is an operation of torch."""
    if op == STORAGE:
        return EFFECTS
    return (op,) if op in EFFECTS else ()


def operations_of(op: str) -> tuple[str, ...]:
    """The operations that `op` means, as events name them."""
    return ALIASES.get(op, (op,))
