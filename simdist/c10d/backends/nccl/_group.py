"""ProcessGroupNCCL's collectives that only move data (torch 2.13), its messages, and the methods that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import require_tensor
from simdist.c10d.backends.nccl._launching import NcclGroup
from simdist.c10d.backends.nccl._offspring import merge, shrink, split
from simdist.c10d.backends.nccl._operands import (
    KINDS,
    Operands,
    all_gathered,
    all_gathered_singly,
    broadcast,
    broadcasts,
    exchanged,
    gathered,
    in_barrier,
    listed_tensors,
    require_devices,
    scattered,
)
from simdist.c10d.backends.nccl._reductions import NcclReductions
from simdist.c10d.surface._calls import lists_of, root_of
from simdist.c10d.surface._modes import visible
from simdist.device import devices_of_this_process
from simdist.errors import UnsupportedError
from simdist.inside.torch import Place

if TYPE_CHECKING:
    from simdist.c10d.backends.nccl._options import NcclOptions
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.surface._arguments import Lists, Tensors
    from simdist.c10d.surface._store import SimStore

__all__ = ["NcclProcessGroup"]

Tensor = torch.Tensor


class NcclProcessGroup(NcclReductions):
    """One rank's handle on a group over NCCL, with all methods."""

    # -- copies --------------------------------------------------------------------------------------------------

    def broadcast(
        self, tensors: Tensors, opts: object = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> SimWork | None:
        """Broadcast the root's tensor in place."""
        opts, root, _ = root_of(self, "broadcast", (tensors,), opts, root)
        listed = [_arguments.single(tensors)]
        return self._collective(Operands("broadcast", KINDS["broadcast"], listed, listed, broadcast, opts, root=root))

    def allgather(
        self, output_tensors: Lists, input_tensors: Tensors, opts: object = None, timeout: timedelta | None = None
    ) -> SimWork | None:
        """Gather every rank's tensor on every rank; they may be of different sizes."""
        outputs, tensor = listed_tensors(output_tensors), _arguments.single(input_tensors)
        _arguments.require_in_bounds("all_gather", outputs, tensor, self._size)
        if any(output.numel() != outputs[0].numel() for output in outputs):
            if outputs[self.rank()].numel() != tensor.numel():
                raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")
            return self._gather_uneven(outputs, tensor, opts)
        return self._collective(Operands("all_gather", KINDS["allgather"], [tensor], outputs, all_gathered, opts))

    def _gather_uneven(self, outputs: list[Tensor], tensor: Tensor, opts: object) -> SimWork | None:
        """Broadcast once from each rank, in one launch."""
        outputs[self.rank()].copy_(tensor)  # a kernel: it waits if the tensor is not filled yet
        sources = [tensor if rank == self.rank() else output for rank, output in enumerate(outputs)]
        inner = "_broadcast_oop", list(zip(sources, outputs, strict=True))
        kind = KINDS["allgather"][0], "ALLGATHER_coalesced"
        return self._collective(Operands("all_gather", kind, [tensor], outputs, broadcasts, opts, inner=inner))

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: object = None) -> SimWork | None:
        """Gather every rank's tensor into one."""
        return self._gather_pairs("all_gather_single", [output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork | None:
        """`all_gather_single` for several pairs, in one."""
        return self._gather_pairs("all_gather_single_coalesced", list(outputs), list(tensors), opts)

    def _gather_pairs(self, method: str, outputs: list[Tensor], tensors: list[Tensor], opts: object) -> SimWork | None:
        for output, tensor in zip(outputs, tensors, strict=True):
            require_tensor(tensor)
            require_tensor(output)
            if output.dtype != tensor.dtype:
                raise TypeError("output tensor must have the same type as input tensor")
            if tensor.numel() * self._size != output.numel():
                raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self._collective(Operands("all_gather", KINDS[method], tensors, outputs, all_gathered_singly, opts))

    def gather(
        self,
        output_tensors: Lists,
        input_tensors: Tensors,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork | None:
        """Gather every rank's tensor on a root."""
        opts, root, _ = root_of(self, "gather", (output_tensors, input_tensors), opts, root)
        tensor = _arguments.single(input_tensors)
        outputs = _arguments.require_lists("gather", tensor, lists_of(output_tensors), root, self.rank(), self._size)
        return self._collective(
            Operands("gather", KINDS["gather"], [tensor], outputs or [], gathered, opts, root=root, lists=outputs)
        )

    def gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: dist.GatherOptions | None = None
    ) -> SimWork | None:
        """Gather into one tensor (torch has this since 2.14). Ranks other than the root do not read `output`.

        Raises:
            ValueError: on the root, the output is not contiguous, or not as large as all inputs together.
        """
        parts: list[list[torch.Tensor]] = []
        if (0 if opts is None else opts.rootRank) == self.rank():
            if not output.is_contiguous():
                raise ValueError("Tensors must be contiguous")
            if output.numel() != input.numel() * self._size:
                raise ValueError("output tensor size must be equal to world_size times input tensor size")
            parts = [list(output.view(self._size, input.numel()))]
        return self.gather(parts, [input.contiguous().view(-1)], opts)

    gather_into_tensor = gather_single

    def scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork | None:
        """Give each rank one tensor of a root's list."""
        opts, root, _ = root_of(self, "scatter", (output_tensors, input_tensors), opts, root)
        tensor = _arguments.single(output_tensors)
        inputs = _arguments.require_lists("scatter", tensor, lists_of(input_tensors), root, self.rank(), self._size)
        given = inputs or [tensor]
        return self._collective(
            Operands("scatter", KINDS["scatter"], given, [tensor], scattered, opts, root=root, lists=inputs)
        )

    def alltoall(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork | None:
        """Each rank sends `input_tensors[r]` to rank r."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        _arguments.require_inputs(outputs, inputs)
        _arguments.one_device([*outputs, *inputs])
        return self._collective(Operands("all_to_all", KINDS["alltoall"], inputs, outputs, exchanged, opts))

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: object = None,
        timeout: timedelta | None = None,
    ) -> SimWork | None:
        """`alltoall` with the parts of one tensor along its first dimension."""
        require_devices(output, tensor)
        require_tensor(tensor)
        require_tensor(output)
        sizes = [
            _arguments.split(each, list(given) if given is not None else None, self._size)
            for each, given in ((output, output_split_sizes), (tensor, input_split_sizes))
        ]
        kind = KINDS["all_to_all_single"]
        return self._collective(Operands("all_to_all", kind, [tensor], [output], exchanged, opts, splits=sizes))

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> SimWork | None:
        """An all-reduce of one element, for which the host waits."""
        index = self._barrier_device(opts)
        tensor = torch.zeros(1, dtype=torch.float32, device=torch.device("cuda", index))
        listed, kind = [tensor], ("ALLREDUCE", "all_reduce_barrier")
        return self._collective(Operands("barrier", kind, listed, listed, in_barrier, opts, blocks=True))

    def _barrier_device(self, opts: object) -> int:
        given = list(getattr(opts, "device_ids", None) or ())
        if given:
            if given[0] < 0:
                raise ValueError("Failed to infer a GPU device id to perform barrier. ")
            return int(given[0])
        if self._bound is not None:
            return int(self._bound.index)
        if self._used:
            return min(self._used)
        index = self._nccl.global_rank % max(1, len(devices_of_this_process().accounts))
        if index == 0:
            self._warn(
                "W",
                "Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is "
                "heterogeneous. You can specify device_id in init_process_group()",
                Place.DEVICE_GUESSED,
            )
        return index

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> SimWork | None:
        """Send to a group rank."""
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> SimWork | None:
        """Receive from a group rank."""
        return self._message("recv", tensors, src, tag)

    # -- groups made from this one -------------------------------------------------------------------------------

    def split_part(self, store: SimStore, ranks: Sequence[int], options: NcclOptions, name: str) -> NcclGroup | None:
        """Return NCCL's part of a group of some ranks of this group; None on a rank that is not among them."""
        return split(self, store, ranks, options, name)

    def merge_part(self, store: SimStore, rank: int, size: int, options: NcclOptions, name: str) -> NcclGroup:
        """Return NCCL's part of a group of the ranks of several groups."""
        return merge(self, store, rank, size, options, name)

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: NcclOptions | None = None
    ) -> NcclGroup:
        """Return the group without some ranks; only the others call this. Flag 1 first aborts what is in flight."""
        return shrink(self, ranks_to_exclude, opts_override, abort=shrink_flags == 1)

    # -- memory that NCCL knows of -------------------------------------------------------------------------------

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Register the memory of a pool. This changes neither results nor costs in the simulation.

        Raises:
            DistBackendError: there is no communicator on the pool's device.
            UnsupportedError: symmetric memory, which has its own kernels and order of additions.
        """
        if str(pool.device) not in self._connections:
            raise dist.DistBackendError(
                "NCCL communicator has not been initialized before mem pool creation. You can pass `device_id` to "
                "init_process_group -- one way of eager initialization -- to work around this issue"
            )
        if symm:
            raise UnsupportedError("symmetric memory is not simulated; register the pool without symm=True")

    def deregister_mem_pool(self, pool: Any) -> None:
        """Deregister the memory of a pool."""
        self.register_mem_pool(pool)

    @property
    def mem_allocator(self) -> NoReturn:
        """NCCL's memory allocator, which needs multicast.

        Raises:
            DistBackendError: always.
        """
        raise dist.DistBackendError("NCCL mem allocator is not supported in this NCCL version")

    # -- methods that it refuses ---------------------------------------------------------------------------------

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> NoReturn:
        """NCCL has no receive from any source.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")

    def allgather_coalesced(self, output_lists: object, tensors: Tensors, opts: object = None) -> NoReturn:
        """NCCL has no such operation.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ProcessGroupNCCL does not support allgather_coalesced")

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> NoReturn:
        """Only Gloo has a monitored barrier.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("ProcessGroup nccl does not support monitoredBarrier")


def _refuse(name: str, way_out: str) -> Callable[..., NoReturn]:
    def refuse(self: NcclProcessGroup, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(f"{name} of an nccl group is not simulated; {way_out}")

    return refuse


_REFUSED = {
    "suspend": "destroy the group and make it again",
    "resume": "destroy the group and make it again",
    "memory_stats": "ask torch.cuda.memory_stats",
    "allocate_tensor": "use torch.empty",
}
for _name, _way_out in _REFUSED.items():
    setattr(NcclProcessGroup, _name, _refuse(_name, _way_out))
visible(NcclProcessGroup)
