"""ProcessGroupNCCL's reductions (torch 2.13): each checks its arguments and launches its operands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import require_tensor
from simdist.c10d.backends.nccl._launching import NcclGroup
from simdist.c10d.backends.nccl._operands import (
    KINDS,
    Operands,
    in_place,
    listed_tensors,
    reduced,
    require_devices,
    scattered_list,
    scattered_singly,
)
from simdist.c10d.surface._calls import root_of

if TYPE_CHECKING:
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.surface._arguments import Lists, Tensors

__all__ = ["NcclReductions"]

Tensor = torch.Tensor
_ALL_REDUCE = KINDS["allreduce"]


class NcclReductions(NcclGroup):
    """The reductions of a group."""

    def allreduce(
        self, tensors: Tensors, opts: object = None, timeout: timedelta | None = None, *, op: object = None
    ) -> SimWork | None:
        """All-reduce one tensor in place; also takes a bare tensor, and a reduce operation instead of options."""
        if (tensors if isinstance(tensors, Tensor) else tensors[0]).is_sparse:
            raise RuntimeError(
                "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
            )
        listed = [_arguments.single(tensors)]
        return self._collective(Operands("all_reduce", _ALL_REDUCE, listed, listed, in_place, opts, op))

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: object = None) -> SimWork | None:
        """All-reduce several tensors in one."""
        _arguments.require_listed(tensors)
        listed = list(tensors)
        return self._collective(Operands("all_reduce", KINDS["allreduce_coalesced"], listed, listed, in_place, opts))

    def reduce(
        self,
        tensors: Tensors,
        opts: object = None,
        op: object = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork | None:
        """Reduce to a root; the tensors of the other ranks stay as they are."""
        opts, root, _ = root_of(self, "reduce", (tensors,), opts, root)
        listed = [_arguments.single(tensors)]
        return self._collective(Operands("reduce", KINDS["reduce"], listed, listed, reduced, opts, op, root))

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Lists,
        opts: object = None,
        timeout: timedelta | None = None,
        *,
        op: object = None,
    ) -> SimWork | None:
        """Reduce a list of tensors, one for each rank."""
        output: Tensor = output_tensors if isinstance(output_tensors, Tensor) else output_tensors[0]
        inputs = listed_tensors(input_tensors)
        require_tensor(output)
        _arguments.require_in_bounds("reduce_scatter", inputs, output, self._size)
        same = all(tensor.numel() == output.numel() for tensor in inputs)
        if not same and inputs[self.rank()].numel() != output.numel():
            raise ValueError("Tensor input and output of _reduce_oop must have the same number of elements ")
        operands = Operands("reduce_scatter", KINDS["reduce_scatter"], inputs, [output], scattered_list, opts, op)
        if not same:
            results = [output if rank == self.rank() else tensor for rank, tensor in enumerate(inputs)]
            operands.kind = operands.kind[0], "REDUCE_SCATTER_coalesced"
            operands.inner = "_reduce_oop", list(zip(inputs, results, strict=True))
        return self._collective(operands)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: object = None) -> SimWork | None:
        """Reduce one tensor, and keep this rank's part of it."""
        return self._reduce_scatter_pairs("reduce_scatter_single", [output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: object = None
    ) -> SimWork | None:
        """`reduce_scatter_single` for several pairs, in one."""
        return self._reduce_scatter_pairs("reduce_scatter_single_coalesced", list(outputs), list(tensors), opts)

    def _reduce_scatter_pairs(
        self, method: str, outputs: list[Tensor], tensors: list[Tensor], opts: object
    ) -> SimWork | None:
        for output, tensor in zip(outputs, tensors, strict=True):
            require_devices(output, tensor)
            if output.dtype != tensor.dtype:
                raise TypeError("input tensor must be the same type as the output tensor.")
            if tensor.numel() != output.numel() * self._size:
                raise ValueError("input tensor must be the same size as output size times world size")
        return self._collective(Operands("reduce_scatter", KINDS[method], tensors, outputs, scattered_singly, opts))
