"""The operands of the bodies over Gloo, and Gloo's texts about them."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

Tensor = torch.Tensor
dist: Any = torch.distributed  # its stubs leave out much of what is called here
ROUNDS = 200  # torch's 1000 take as long as all other tests
FIRST = torch.tensor([[0]])  # indices of a sparse tensor with one entry
_TAIL = "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"


def described(dtype: str, layout: str = "Strided") -> str:
    """Return a tensor's options as C++ prints them."""
    return f"TensorOptions(dtype={dtype}, device=cpu, layout={layout}, {_TAIL}"


def mixed_types(operation: str, index: int) -> str:
    """Return the refusal of a double among floats."""
    said = f"(expected {described('float')}, got {described('double')})"
    return f"ProcessGroupGloo::{operation}: invalid tensor type at index {index} {said}"


def value_of(work: Any) -> Any:
    """Wait for the work's future, and return its value."""
    future = work.get_future()
    future.wait()
    return future.value()


def column(tensor: Tensor) -> Tensor:
    """Return the same single element at the head of a matrix column, whose memory is not dense."""
    return tensor.expand(2, 2).tril().contiguous()[:, 0]


def reductions(rank: int, size: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield operation, the rank's input, and the result of all ranks."""
    own = torch.tensor([rank + 1.0])
    for kind, result in (
        (dist.ReduceOp.SUM, size * (size + 1) / 2),
        (dist.ReduceOp.PRODUCT, math.factorial(size)),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, size),
        (dist.ReduceOp.AVG, (size + 1) / 2),
    ):
        yield kind, own.clone(), torch.tensor([float(result)])
    for bit in range(4):
        yield (
            dist.ReduceOp.BAND,
            torch.tensor([rank | 1 << bit], dtype=torch.int32),
            torch.tensor([1 << bit], dtype=torch.int32),
        )
    for kind, function in ((dist.ReduceOp.BOR, operator.or_), (dist.ReduceOp.BXOR, operator.xor)):
        for share in range(1, 5):  # as if each rank stood for several
            mine = functools.reduce(function, range(rank * share, (rank + 1) * share))
            everyone = functools.reduce(function, [rank * share + j for rank in range(size) for j in range(share)])
            yield kind, torch.tensor([mine], dtype=torch.int32), torch.tensor([everyone], dtype=torch.int32)
    for kind, part in ((dist.ReduceOp.SUM, size * (size + 1) / 2), (dist.ReduceOp.AVG, (size + 1) / 2)):
        yield kind, torch.tensor([complex(rank + 1, rank + 1)]), torch.tensor([complex(part, part)])


def sparse_operands(rank: int, size: int, per_rank: int) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the rank's inputs, and the sum over all ranks, with several numbers of sparse and dense dimensions."""

    def operand(index: int, sparse: int, dense: int) -> Tensor:
        count = size * per_rank
        rows = [torch.arange(index + 1)] + [torch.zeros(index + 1, dtype=torch.long)] * (sparse - 1)
        shape = [count] + [2] * dense + [count] * (sparse - 1)
        return torch.sparse_coo_tensor(torch.stack(rows), torch.ones([index + 1] + [2] * dense), shape)

    for sparse, dense in ((1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)):
        mine = [operand(per_rank * rank + j, sparse, dense) for j in range(per_rank)]
        everyone = [operand(index, sparse, dense) for index in range(size * per_rank)]
        yield mine, functools.reduce(operator.add, everyone)
