"""One row for each collective and each kind of message: its names, and its properties in every form of call.

A collective has one name in events, and is called in several ways: by functions of torch.distributed, by functional
collectives, and by methods of `ProcessGroup`. Each method has an operator of `torch.ops.c10d` and a type of its own.
(Names of torch 2.11 to 2.15.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["ALIKE", "COPIES", "FILLING", "FROM_ROOT", "IN_PLACE", "KERNELS", "MESSAGES", "METHODS", "REDUCTIONS"]
__all__ += ["RENAMED", "RINGS", "ROOTED", "SILENT", "TABLE", "TO_ROOT", "UNCOMPARED", "UNSHAPED"]
__all__ += ["Collective", "Method", "names_where"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of `ProcessGroup`, by its newest name."""

    name: str
    operator: str  # of `torch.ops.c10d`
    op_type: str = ""  # of `c10d::OpType`; "" where torch has none
    tensors: int = 2  # the arguments that are tensors or lists of them; they come first
    old: str = ""  # its name before torch renamed it
    returns_tensors: bool = False  # its operator also returns the tensors that it fills
    recorded: str = ""  # its name in NCCL's flight recorder, if not the collective's
    compared: bool = True  # at debug level DETAIL
    alike: tuple[int, ...] = ()  # which of its tensors ranks compare at that level, by position
    if_alike: int | None = None  # only if the tensors of this list have one shape


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective or a kind of message: what has one name in events."""

    name: str
    methods: tuple[Method, ...] = ()
    payload: Literal["flat", "gathered", "scattered", "exchanged", "sparse", "nothing"] = "flat"
    root: Literal["", "gives", "takes"] = ""  # what the root does, if there is one
    reduces: bool = False  # dense tensors
    alike: bool = False  # events show the same type and shape of it on every rank
    agrees: Literal["shape", "size", ""] = "shape"  # what ranks compare of its tensors; shapes only in strict groups
    in_place: bool = False  # after a failure its tensors still hold the program's values, or sums of these
    kernel: str = ""  # NCCL's function; "": NCCL builds it from messages, or lacks it
    functions: tuple[str, ...] = ()  # of torch.distributed, besides one with its own name
    aliases: tuple[str, ...] = ()  # other names that faults accept
    recorded: tuple[str, ...] = ()  # names in torch's flight records besides its own and those of its methods

    @property
    def is_message(self) -> bool:
        """True for a send or a receive."""
        return self.name in ("send", "recv")

    @property
    def all_recorded(self) -> tuple[str, ...]:
        """All names that torch's flight records have for it, besides its own."""
        return (*(method.recorded for method in self.methods if method.recorded), *self.recorded)


TABLE = (
    Collective(
        "all_reduce",
        (
            Method("allreduce", "allreduce_", "ALLREDUCE", 1, returns_tensors=True, alike=(0,)),
            Method(
                *("allreduce_coalesced", "allreduce_coalesced_", "ALLREDUCE_COALESCED", 1),
                recorded="allreduce_coalesced",
            ),
        ),
        reduces=True,
        alike=True,
        in_place=True,
        kernel="AllReduce",
        functions=("all_reduce_coalesced",),
        aliases=("allreduce",),
    ),
    Collective(
        "sparse_all_reduce",  # the same calls, of sparse tensors
        payload="sparse",
        in_place=True,
        aliases=("all_reduce", "allreduce"),
    ),
    Collective(
        "reduce",
        (Method("reduce", "reduce_", "REDUCE", 1, alike=(0,)),),
        root="takes",
        reduces=True,
        alike=True,
        in_place=True,
        kernel="Reduce",
        recorded=("_reduce_oop",),
    ),
    Collective(
        "broadcast",
        (Method("broadcast", "broadcast_", "BROADCAST", 1, returns_tensors=True, alike=(0,)),),
        root="gives",
        alike=True,
        kernel="Broadcast",
        functions=("broadcast_object_list",),
        recorded=("_broadcast_oop",),
    ),
    Collective(
        "all_gather",
        (
            Method("allgather", "allgather_", "ALLGATHER", returns_tensors=True, alike=(1,), if_alike=0),
            Method(
                *("all_gather_single", "_allgather_base_", "_ALLGATHER_BASE"),
                old="_allgather_base",
                returns_tensors=True,
                recorded="_all_gather_base",
                alike=(1,),
            ),
            Method("allgather_coalesced", "allgather_coalesced_", "ALLGATHER_COALESCED"),
            Method(
                *("all_gather_single_coalesced", "allgather_into_tensor_coalesced_", "ALLGATHER_COALESCED"),
                old="allgather_into_tensor_coalesced",
                recorded="all_gather_into_tensor_coalesced",
                compared=False,
            ),
        ),
        payload="gathered",
        alike=True,
        kernel="AllGather",
        functions=("all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single"),
        aliases=(
            *("allgather", "all_gather_into_tensor_coalesced", "all_gather_single_autograd"),
            *("all_gather_single_coalesced", "all_gather_tensor", "all_gather_tensor_autograd"),
        ),
        recorded=("ALLGATHER_coalesced", "all_gather_single", "all_gather_v"),
    ),
    Collective(
        "reduce_scatter",
        (
            Method("reduce_scatter", "reduce_scatter_", "REDUCE_SCATTER", returns_tensors=True, alike=(0,), if_alike=1),
            Method(
                *("reduce_scatter_single", "_reduce_scatter_base_", "_REDUCE_SCATTER_BASE"),
                old="_reduce_scatter_base",
                returns_tensors=True,
                recorded="_reduce_scatter_base",
                alike=(1, 0),
            ),
            Method(
                "reduce_scatter_single_coalesced",
                "reduce_scatter_tensor_coalesced_",
                "REDUCE_SCATTER_TENSOR_COALESCED",
                old="reduce_scatter_tensor_coalesced",
                recorded="reduce_scatter_tensor_coalesced",
            ),
        ),
        payload="scattered",
        reduces=True,
        alike=True,
        agrees="size",
        kernel="ReduceScatter",
        functions=("reduce_scatter_single", "reduce_scatter_tensor"),
        aliases=(
            *("reduce_scatter_single_autograd", "reduce_scatter_single_coalesced"),
            *("reduce_scatter_tensor_autograd", "reduce_scatter_tensor_coalesced"),
        ),
        recorded=("REDUCE_SCATTER_coalesced", "reduce_scatter_single", "reduce_scatter_v"),
    ),
    Collective(
        "gather",
        (Method("gather", "gather_", "GATHER", alike=(1,)),),
        payload="gathered",
        root="takes",
        functions=("gather_into_tensor", "gather_object", "gather_single"),
    ),
    Collective(
        "scatter",
        (Method("scatter", "scatter_", "SCATTER", returns_tensors=True, alike=(0,)),),
        payload="scattered",
        root="gives",
        functions=("scatter_object_list",),
    ),
    Collective(
        "all_to_all",
        (
            Method("alltoall", "alltoall_", "ALLTOALL", returns_tensors=True),
            Method("all_to_all_single", "alltoall_base_", "ALLTOALL_BASE", old="alltoall_base"),
        ),
        payload="exchanged",
        agrees="",
        functions=("all_to_all_single",),
        aliases=("all_to_all_single_autograd", "alltoall", "alltoall_base", "permute_tensor"),
        recorded=("all_to_all_single", "all_to_all_v_single"),
    ),
    Collective(
        "barrier",
        (Method("barrier", "barrier", "BARRIER", 0),),
        payload="nothing",
        alike=True,
        agrees="",
        kernel="AllReduce",
        recorded=("all_reduce_barrier",),
    ),
    Collective(
        "monitored_barrier",
        (Method("monitored_barrier", "monitored_barrier_", "", 0, compared=False),),
        payload="nothing",
    ),
    Collective(
        "send",
        (Method("send", "send", "SEND", 1, compared=False),),
        in_place=True,
        functions=("batch_isend_irecv", "isend", "send_object_list"),
    ),
    Collective(
        "recv",
        (
            Method("recv", "recv_", "RECV", 1, compared=False),
            Method("recv_anysource", "recv_any_source_", "RECVANYSOURCE", 1, compared=False),
        ),
        functions=("batch_isend_irecv", "irecv", "recv_object_list"),
    ),
)


def names_where(holds: Callable[[Collective], bool]) -> tuple[str, ...]:
    """The names of the rows for which `holds` is true, in the order of the table."""
    return tuple(row.name for row in TABLE if holds(row))


METHODS = {method.name: method for row in TABLE for method in row.methods}
RENAMED = {method.old: method.name for method in METHODS.values() if method.old}
"""Old name -> new name of methods; a group answers to both."""

ALIKE = names_where(lambda row: row.alike)
IN_PLACE = names_where(lambda row: row.in_place)
MESSAGES = names_where(lambda row: row.is_message)
REDUCTIONS = names_where(lambda row: row.reduces)
ROOTED = names_where(lambda row: row.root != "")
FROM_ROOT = names_where(lambda row: row.root == "gives")
TO_ROOT = names_where(lambda row: row.root == "takes")
COPIES = names_where(lambda row: row.root != "" and not row.reduces)
"""The operations with a root that move bytes without reducing them."""

SILENT = (*names_where(lambda row: row.payload == "nothing"), "recv")
"""The operations that read nothing of a rank's memory."""

FILLING = names_where(lambda row: row.payload not in ("nothing", "sparse") and not row.is_message)
"""The collectives that fill dense tensors."""

UNCOMPARED = names_where(lambda row: row.agrees == "")
UNSHAPED = names_where(lambda row: row.agrees != "shape")
"""`UNCOMPARED`: ranks compare nothing of the tensors. `UNSHAPED`: ranks never compare their shapes."""

KERNELS = {row.name: row.kernel for row in TABLE if row.kernel}
"""The collectives that NCCL has a function for, with the function's name."""

RINGS = names_where(lambda row: row.payload in ("flat", "gathered", "scattered") and not (row.root or row.is_message))
"""The collectives without a root that run in a ring: each rank passes on what it got from the one before."""
