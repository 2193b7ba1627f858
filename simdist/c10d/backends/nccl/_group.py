"""ProcessGroupNCCL's collectives that only move data (torch 2.13), its messages, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import require_tensor
from simdist.c10d.backends.nccl._launching import Call, NcclGroup, flat
from simdist.c10d.backends.nccl._offspring import merge, shrink, split
from simdist.c10d.backends.nccl._operands import (
    as_real,
    bytes_of,
    listed_tensors,
    require_devices,
)
from simdist.c10d.backends.nccl._reductions import NcclReductions
from simdist.c10d.calls._payload import Exchanged, Gathered, Scattered
from simdist.c10d.surface._calls import lists_of, root_of
from simdist.c10d.surface._modes import visible
from simdist.device import devices_of_this_process
from simdist.errors import UnsupportedError
from simdist.inside.torch import Place

__all__ = ["NcclProcessGroup"]

Tensor = torch.Tensor


class NcclProcessGroup(NcclReductions):
    """One rank's handle on a group over NCCL, with all that it can do."""

    # -- copies --------------------------------------------------------------------------------------------------

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        """Broadcast the root's tensor in place."""
        opts, root, _ = root_of(self, "broadcast", (tensors,), opts, root)
        tensor = _arguments.single(tensors)

        def make() -> list[Call]:
            self._require_root("Broadcast", root)
            parts = as_real(tensor)
            data = flat(parts)
            operation = self._operation("broadcast", parts, bytes_of(data), root=root)
            reads, writes = ([(parts, data)], []) if self.rank() == root else ([], [parts])
            return [Call(operation, data, reads, writes)]

        return self._collective("broadcast", ("BROADCAST", "broadcast"), make, [tensor], [tensor], opts)

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Gather every rank's tensor on every rank; they may be of different sizes."""
        outputs, tensor = listed_tensors(output_tensors), _arguments.single(input_tensors)
        if any(output.numel() != outputs[0].numel() for output in outputs):
            if outputs[self.rank()].numel() != tensor.numel():
                raise ValueError("Tensor input and output of _broadcast_oop must have the same number of elements ")
            return self._gather_uneven(outputs, tensor, opts)

        def make() -> list[Call]:
            data = flat(tensor)
            operation = self._operation("all_gather", tensor, bytes_of(data))
            return [Call(operation, Gathered([flat(each) for each in outputs], data), [(tensor, data)], outputs)]

        return self._collective("all_gather", ("ALLGATHER", "all_gather"), make, [tensor], outputs, opts)

    def _gather_uneven(self, outputs: list[Tensor], tensor: Tensor, opts: Any) -> Any:
        """One broadcast from each rank, launched together."""

        outputs[self.rank()].copy_(tensor)  # a kernel: it waits where somebody is still to fill the tensor

        def make() -> list[Call]:
            calls = []
            for root, output in enumerate(outputs):
                data = flat(output)
                operation = self._operation("broadcast", output, bytes_of(data), root=root)
                calls.append(Call(operation, data, [], [output]))
            return calls

        sources = [tensor if rank == self.rank() else output for rank, output in enumerate(outputs)]
        return self._collective(
            *("all_gather", ("ALLGATHER", "ALLGATHER_coalesced"), make, [tensor], outputs, opts),
            inner=("_broadcast_oop", list(zip(sources, outputs, strict=True))),
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Gather every rank's tensor into one."""
        return self._gather_pairs(("_ALLGATHER_BASE", "_all_gather_base"), [output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """`all_gather_single` for several pairs, in one."""
        kind = "COALESCED", "all_gather_into_tensor_coalesced"
        return self._gather_pairs(kind, list(outputs), list(tensors), opts)

    def _gather_pairs(self, kind: tuple[str, str], outputs: list[Tensor], tensors: list[Tensor], opts: Any) -> Any:
        for output, tensor in zip(outputs, tensors, strict=True):
            require_tensor(tensor)
            require_tensor(output)
            if output.dtype != tensor.dtype:
                raise TypeError("output tensor must have the same type as input tensor")
            if tensor.numel() * self._size != output.numel():
                raise ValueError("output tensor size must be equal to world_size times input tensor size")

        def make() -> list[Call]:
            calls = []
            for output, tensor in zip(outputs, tensors, strict=True):
                data, whole = flat(tensor), flat(output)
                parts = list(whole.chunk(self._size)) if whole.numel() else [whole] * self._size
                operation = self._operation("all_gather", tensor, bytes_of(data))
                calls.append(Call(operation, Gathered(parts, data), [(tensor, data)], [output]))
            return calls

        return self._collective("all_gather", kind, make, tensors, outputs, opts)

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Gather every rank's tensor on a root."""
        opts, root, _ = root_of(self, "gather", (output_tensors, input_tensors), opts, root)
        tensor = _arguments.single(input_tensors)
        outputs = _arguments.require_lists("gather", tensor, lists_of(output_tensors), root, self.rank(), self._size)

        def make() -> list[Call]:
            data = flat(tensor)
            operation = self._operation("gather", tensor, bytes_of(data), root=root)
            flats = None if outputs is None else [flat(each) for each in outputs]
            return [Call(operation, Gathered(flats, data), [(tensor, data)], outputs or [])]

        return self._collective("gather", ("GATHER", "gather"), make, [tensor], outputs or [], opts)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """As `gather`, into one tensor; torch has it since 2.14. `output` is not read on ranks other than the root.

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
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Give each rank one tensor of a root's list."""
        opts, root, _ = root_of(self, "scatter", (output_tensors, input_tensors), opts, root)
        tensor = _arguments.single(output_tensors)
        inputs = _arguments.require_lists("scatter", tensor, lists_of(input_tensors), root, self.rank(), self._size)

        def make() -> list[Call]:
            data = flat(tensor)
            operation = self._operation("scatter", tensor, bytes_of(data), root=root)
            flats = None if inputs is None else [flat(each) for each in inputs]
            reads = [] if inputs is None else list(zip(inputs, flats or [], strict=True))
            return [Call(operation, Scattered(data, flats), reads, [tensor])]

        return self._collective("scatter", ("SCATTER", "scatter"), make, inputs or [tensor], [tensor], opts)

    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """Each rank sends `input_tensors[r]` to rank r."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        _arguments.one_device([*outputs, *inputs])
        return self._exchange(
            "ALLTOALL",
            inputs[0],
            lambda: ([flat(tensor) for tensor in outputs], [flat(tensor) for tensor in inputs]),
            inputs,
            outputs,
            opts,
        )

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
    ) -> Any:
        """`alltoall` with the parts of one tensor along its first dimension."""
        require_devices(output, tensor)
        require_tensor(tensor)
        require_tensor(output)
        sizes = [
            _arguments.split(each, list(given) if given is not None else None, self._size)
            for each, given in ((output, output_split_sizes), (tensor, input_split_sizes))
        ]
        return self._exchange(
            "ALLTOALL_BASE",
            tensor,
            lambda: (
                list(torch.split_with_sizes(flat(output), sizes[0])),
                list(torch.split_with_sizes(flat(tensor), sizes[1])),
            ),
            [tensor],
            [output],
            opts,
        )

    def _exchange(
        self,
        op_type: str,
        tensor: Tensor,
        parts: Callable[[], tuple[list[Tensor], list[Tensor]]],
        inputs: list[Tensor],
        outputs: list[Tensor],
        opts: Any,
    ) -> Any:
        def make() -> list[Call]:
            received, sent = parts()
            size = sum(bytes_of(each) for each in sent)
            operation = self._operation("all_to_all", tensor, size)
            reads = list(zip(inputs, sent, strict=True)) if len(inputs) == len(sent) else []
            if not reads:
                reads = [(inputs[0], each) for each in sent]
            return [Call(operation, Exchanged(received, sent), reads, outputs, partners=self._partners(received, sent))]

        return self._collective("all_to_all", (op_type, "all_to_all"), make, inputs, outputs, opts)

    def _partners(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> frozenset[int] | None:
        """The ranks that this one exchanges anything with; None: all. Torch calls no send or receive of nothing."""
        pairs = list(zip(received, sent, strict=True))
        if all(there.numel() and here.numel() for there, here in pairs):
            return None
        mine = self.rank()
        return frozenset(
            rank for rank, (there, here) in enumerate(pairs) if rank != mine and (there.numel() or here.numel())
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """An all-reduce of one element, for which the host waits."""
        index = self._barrier_device(opts)
        tensor = torch.zeros(1, dtype=torch.float32, device=torch.device("cuda", index))

        def make() -> list[Call]:
            data = flat(tensor)
            operation = self._operation("barrier", tensor, bytes_of(data), "sum")
            return [Call(operation, data, [], [tensor], [tensor])]

        kind = "ALLREDUCE", "all_reduce_barrier"
        return self._collective("barrier", kind, make, [tensor], [tensor], opts, blocks=True)

    def _barrier_device(self, opts: Any) -> int:
        given = list(getattr(opts, "device_ids", None) or ())
        if given:
            if given[0] < 0:
                raise ValueError("Failed to infer a GPU device id to perform barrier. ")
            return int(given[0])
        if self._bound is not None:
            return int(self._bound.index)
        if self._used:
            return min(self._used)
        index = self._member.process.rank % max(1, len(devices_of_this_process().accounts))
        if index == 0:
            self._warn(
                "W",
                "Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is "
                "heterogeneous. You can specify device_id in init_process_group()",
                Place.DEVICE_GUESSED,
            )
        return index

    # -- messages ------------------------------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send to a group rank."""
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive from a group rank."""
        return self._message("recv", tensors, src, tag)

    # -- groups made of it ---------------------------------------------------------------------------------------

    def split_part(self, store: Any, ranks: Sequence[int], options: Any, name: str) -> NcclGroup | None:
        """NCCL's part of a group of some of its ranks; None for a rank that is not among them."""
        return split(self, store, ranks, options, name)

    def merge_part(self, store: Any, rank: int, size: int, options: Any, name: str) -> NcclGroup:
        """NCCL's part of a group of the ranks of several groups."""
        return merge(self, store, rank, size, options, name)

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> NcclGroup:
        """The group without some of its ranks; called by the others. With flag 1 what is under way is aborted first."""
        return shrink(self, ranks_to_exclude, opts_override, abort=shrink_flags == 1)

    # -- memory that NCCL knows of -------------------------------------------------------------------------------

    def register_mem_pool(self, pool: Any, symm: bool = False) -> None:
        """Let NCCL know the memory of a pool: results and costs here are the same with it and without.

        Raises:
            DistBackendError: there is no communicator on the pool's device.
            UnsupportedError: symmetric memory, which has kernels and an order of additions of its own.
        """
        if str(pool.device) not in self._connections:
            raise dist.DistBackendError(
                "NCCL communicator has not been initialized before mem pool creation. You can pass `device_id` to "
                "init_process_group -- one way of eager initialization -- to work around this issue"
            )
        if symm:
            raise UnsupportedError("symmetric memory is not simulated; register the pool without symm=True")

    def deregister_mem_pool(self, pool: Any) -> None:
        """Let NCCL forget it."""
        self.register_mem_pool(pool)

    @property
    def mem_allocator(self) -> NoReturn:
        """NCCL's, which wants multicast.

        Raises:
            DistBackendError: always.
        """
        raise dist.DistBackendError("NCCL mem allocator is not supported in this NCCL version")

    # -- what it does not do -------------------------------------------------------------------------------------

    def recv_anysource(self, tensors: Any, tag: int = 0) -> NoReturn:
        """NCCL can't.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")

    def allgather_coalesced(self, output_lists: Any, tensors: Any, opts: Any = None) -> NoReturn:
        """Likewise.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ProcessGroupNCCL does not support allgather_coalesced")

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> NoReturn:
        """Gloo's only.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("ProcessGroup nccl does not support monitoredBarrier")


def _refuse(name: str, way_out: str) -> Callable[..., NoReturn]:
    def refuse(self: NcclProcessGroup, *args: Any, **kwargs: Any) -> NoReturn:
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
