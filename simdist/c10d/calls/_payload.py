"""What a rank brings to a call: the tensors that are filled, and those that it gives, flat and in the CPU's memory.

Which payload a collective has stands in its row of the table: `Flat` for all_reduce, reduce, broadcast and messages;
`Gathered` for all_gather and gather; `Scattered` for scatter and reduce_scatter; `Exchanged` for all_to_all; `Sparse`
for a sparse all_reduce; `Nothing` for barriers. They are tuples: what looks for tensors inside needs to know no more.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import torch

from simdist.c10d.calls._operation import Operation

__all__ = ["Brought", "Exchanged", "Factor", "Flat", "Gathered", "Nothing", "Outputs", "Payload", "Scattered", "Sparse"]

Tensor = torch.Tensor

Flat: TypeAlias = torch.Tensor
"""One tensor, which is given, filled or both."""
Nothing: TypeAlias = None


class Gathered(NamedTuple):
    """A tensor from each rank, where they are wanted, and what this rank gives."""

    filled: list[Tensor] | None
    given: Tensor


class Scattered(NamedTuple):
    """What this rank gets, and what it gives: a tensor for each rank, one for all of them, or nothing."""

    filled: Tensor
    given: list[Tensor] | None


class Exchanged(NamedTuple):
    """A tensor from each rank and one for each."""

    filled: list[Tensor]
    given: list[Tensor]


class Sparse(NamedTuple):
    """A sparse tensor, and its entries at the time of the call."""

    filled: Tensor
    given: Tensor


Payload: TypeAlias = Flat | Gathered | Scattered | Exchanged | Sparse | Nothing


Outputs: TypeAlias = list[Any]
"""What an operation fills, as its work has it: tensors, or lists of them, as the operation is."""

Factor: TypeAlias = float | torch.Tensor
"""What an operand is multiplied by before a sum (`ReduceOp.PREMUL_SUM`)."""


class Brought(NamedTuple):
    """What a rank brings to an operation that ends on a stream."""

    operation: Operation
    payload: Payload
    factor: Factor | None = None  # by which its operand is multiplied before a sum: a number, or a tensor
