"""The data of a rank in a call: the tensors that are filled, and those that it gives, flat and in the CPU's memory.

A collective's row of the table names its payload: `Flat` for all_reduce, reduce, broadcast and messages;
`Gathered` for all_gather and gather; `Scattered` for scatter and reduce_scatter; `Exchanged` for all_to_all; `Sparse`
for a sparse all_reduce; `Nothing` for barriers. They are tuples: code that looks for tensors inside needs to know no
more.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from simdist.c10d.calls._operation import Operation

__all__ = ["Brought", "Exchanged", "Factor", "Flat", "Gathered", "Nothing", "Outputs", "Payload", "Scattered", "Sparse"]

Tensor = torch.Tensor

Flat: TypeAlias = torch.Tensor
"""One tensor, which the operation reads, fills, or both."""
Nothing: TypeAlias = None


class Gathered(NamedTuple):
    """A tensor from each rank, on ranks that receive them, and the tensor that this rank gives."""

    filled: list[Tensor] | None
    given: Tensor


class Scattered(NamedTuple):
    """The tensor that this rank gets, and what it gives: a tensor for each rank, one for all of them, or nothing."""

    filled: Tensor
    given: list[Tensor] | None


class Exchanged(NamedTuple):
    """A tensor from each rank and one for each rank."""

    filled: list[Tensor]
    given: list[Tensor]


class Sparse(NamedTuple):
    """A sparse tensor, and its entries at the time of the call."""

    filled: Tensor
    given: Tensor


Payload: TypeAlias = Flat | Gathered | Scattered | Exchanged | Sparse | Nothing


Outputs: TypeAlias = list[Any]
"""The outputs of an operation as its work returns them: tensors, or lists of tensors, depending on the operation."""

Factor: TypeAlias = float | torch.Tensor
"""The factor that multiplies an operand before a sum (`ReduceOp.PREMUL_SUM`)."""


class Brought(NamedTuple):
    """A rank's call of an operation that ends on a stream."""

    operation: Operation
    payload: Payload
    factor: Factor | None = None  # by which its operand is multiplied before a sum: a number, or a tensor
