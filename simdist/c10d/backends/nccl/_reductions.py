"""ProcessGroupNCCL's reductions (torch 2.13): each checks its arguments, lays the bytes out, and launches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import check_reduction, check_type, require_tensor
from simdist.c10d.backends.nccl._launching import Call, NcclGroup, flat
from simdist.c10d.backends.nccl._operands import (
    as_real,
    bare_tensor,
    bytes_of,
    dense_tensor,
    listed_tensors,
    of_type,
    reduction_and_factor,
    require_devices,
)
from simdist.c10d.backends.nccl._words import nccl_error
from simdist.c10d.calls._operation import Operation, key_of
from simdist.c10d.calls._payload import Scattered
from simdist.c10d.surface._calls import root_of
from simdist.inside.torch import Place

__all__ = ["NcclReductions"]

Tensor = torch.Tensor


class NcclReductions(NcclGroup):
    """A group as far as it reduces."""

    def _operation(
        self,
        name: str,
        tensor: Tensor,
        size: int,
        reduction: str = "",
        root: int = -1,
        shape: tuple[int, ...] | None = None,
    ) -> Operation:
        check_type(name, tensor.dtype)
        if reduction:
            check_reduction(reduction, tensor.dtype)
        shape = tensor.shape if shape is None else shape
        key = key_of((name, size, tensor.element_size(), tensor.dtype, shape, reduction, root, None))
        known = self._communicator.known.get(key)
        if known is None:
            known = self._communicator.known[key] = self._communicator.new_operation(key)
        return known

    # -- reductions ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None) -> Any:
        """All-reduce one tensor in place; also takes a bare tensor, and a reduce operation instead of options."""
        tensor = bare_tensor(tensors)
        if tensor.is_sparse:
            raise RuntimeError(
                "NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead."
            )
        tensor = _arguments.single(tensors)
        return self._collective(
            "all_reduce",
            ("ALLREDUCE", "all_reduce"),
            lambda: [self._reduction_in_place(tensor, opts, op)],
            [tensor],
            [tensor],
            opts,
        )

    def _reduction_in_place(self, tensor: Tensor, opts: Any, op: Any = None) -> Call:
        reduction, factor = reduction_and_factor(opts, op)
        tensor = as_real(tensor, "all_reduce", reduction)
        data = flat(tensor)
        operation = self._operation("all_reduce", tensor, bytes_of(data), reduction)
        return Call(operation, data, [], [tensor], [tensor], factor)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        """All-reduce several tensors in one."""
        _arguments.require_listed(tensors)
        return self._collective(
            "all_reduce",
            ("COALESCED", "allreduce_coalesced"),
            lambda: [self._reduction_in_place(tensor, opts) for tensor in tensors],
            list(tensors),
            list(tensors),
            opts,
        )

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Reduce to a root; the tensors of the others stay as they are."""
        opts, root, _ = root_of(self, "reduce", (tensors,), opts, root)
        tensor = _arguments.single(tensors)

        def make() -> list[Call]:
            self._require_root("Reduce", root)
            reduction, factor = reduction_and_factor(opts, op)
            parts = as_real(tensor, "reduce", reduction)
            data = flat(parts)
            operation = self._operation("reduce", parts, bytes_of(data), reduction, root)
            if self.rank() == root:
                return [Call(operation, data, [], [parts], [parts], factor)]
            return [Call(operation, data, [(parts, data)], [], [parts], factor)]

        return self._collective("reduce", ("REDUCE", "reduce"), make, [tensor], [tensor], opts)

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Any:
        """Reduce a list of tensors, one for each rank."""
        output, inputs = bare_tensor(output_tensors), listed_tensors(input_tensors)
        require_tensor(output)
        same = all(tensor.numel() == output.numel() for tensor in inputs)
        if not same and inputs[self.rank()].numel() != output.numel():
            raise ValueError("Tensor input and output of _reduce_oop must have the same number of elements ")
        results = [output if rank == self.rank() else tensor for rank, tensor in enumerate(inputs)]
        return self._collective(
            "reduce_scatter",
            ("REDUCE_SCATTER", "reduce_scatter" if same else "REDUCE_SCATTER_coalesced"),
            # Torch copies the list into one tensor, of the type of its first.
            lambda: [
                self._scattered(output, inputs, [flat(dense_tensor(of_type(t, inputs[0]))) for t in inputs], opts, op)
            ],
            inputs,
            [output],
            opts,
            inner=None if same else ("_reduce_oop", list(zip(inputs, results, strict=True))),
        )

    def _scattered(
        self, output: Tensor, inputs: Sequence[Tensor], chunks: list[Tensor], opts: Any, op: Any = None
    ) -> Call:
        reduction, factor = reduction_and_factor(opts, op)
        data = flat(output)
        shape = inputs[0].shape
        operation = self._operation(
            "reduce_scatter", output, sum(bytes_of(chunk) for chunk in chunks), reduction, shape=tuple(shape)
        )
        reads = list(zip(inputs, chunks, strict=True)) if len(inputs) == len(chunks) else []
        if not reads:  # one tensor, whose parts stand for it
            reads = [(inputs[0], chunk) for chunk in chunks]
        return Call(operation, Scattered(data, chunks), reads, [output], [inputs], factor)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Reduce one tensor, and keep this rank's part of it."""
        kind = "_REDUCE_SCATTER_BASE", "_reduce_scatter_base"
        return self._reduce_scatter_pairs(kind, [output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> Any:
        """`reduce_scatter_single` for several pairs, in one."""
        kind = "COALESCED", "reduce_scatter_tensor_coalesced"
        return self._reduce_scatter_pairs(kind, list(outputs), list(tensors), opts)

    def _reduce_scatter_pairs(
        self, kind: tuple[str, str], outputs: list[Tensor], tensors: list[Tensor], opts: Any
    ) -> Any:
        for output, tensor in zip(outputs, tensors, strict=True):
            require_devices(output, tensor)
            if output.dtype != tensor.dtype:
                raise TypeError("input tensor must be the same type as the output tensor.")
            if tensor.numel() != output.numel() * self._size:
                raise ValueError("input tensor must be the same size as output size times world size")

        def make() -> list[Call]:
            return [
                self._scattered(output, [tensor], list(flat(dense_tensor(tensor)).chunk(self._size)), opts)
                if tensor.numel()
                else self._scattered(output, [tensor], [flat(tensor)] * self._size, opts)
                for output, tensor in zip(outputs, tensors, strict=True)
            ]

        return self._collective("reduce_scatter", kind, make, tensors, outputs, opts)

    def _require_root(self, name: str, root: int) -> None:
        if not 0 <= root < self._size:
            raise nccl_error(
                "ncclInvalidArgument",
                f"{name} : invalid root {root} (root should be in the 0..{self._size} range)",
                Place.NO_SUCH_ROOT,
            )
