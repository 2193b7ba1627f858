"""Reductions of every operation and dtype, around the boundaries of chunks and segments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests.bits.bench import DTYPES, HUGE_WORLD, LARGE, MIB, OPERATIONS, Bench, BitsCase, Result, Tensor, short_name

__all__ = ["reduction_cases"]

_c10d: Any = dist.distributed_c10d

Reduction = Callable[[Bench, Tensor, Any], Result]


def _sizes(world: int) -> list[int]:
    """Return sizes around the boundaries of chunks and segments, with no, one or more elements for each rank."""
    near = {0, 1, 2, 3, world - 1, world, world + 1, 2 * world - 1, 2 * world, 2 * world + 1, 1000, 1001, 4097}
    return sorted(near)


def _payloads(world: int) -> Iterator[tuple[str, torch.dtype, int]]:
    """Yield operation, dtype and size: every operation on every dtype at one size, and many sizes for some."""
    for operation in OPERATIONS:
        for dtype in DTYPES:
            yield operation, dtype, 101
    for size in _sizes(world):
        yield "SUM", torch.float32, size
    for operation, dtype in (
        ("MAX", torch.float16),
        ("SUM", torch.bfloat16),
        ("SUM", torch.complex64),
        ("AVG", torch.complex128),
        ("BXOR", torch.int8),
        ("MIN", torch.float64),
    ):
        for size in (1, world + 1, 2 * world - 1, 1001):
            yield operation, dtype, size


def _large_payloads(world: int, *, several_segments: bool) -> Iterator[tuple[str, torch.dtype, int]]:
    """Yield payloads of about a megabyte, and of several segments of a megabyte for each rank."""
    for size in (MIB - 1, MIB, MIB + 1):
        yield "SUM", torch.float32, size
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        yield "AVG", dtype, MIB + 7
    yield "MAX", torch.float32, 2 * MIB + 11
    yield "SUM", torch.bfloat16, 5 * MIB + 3
    if several_segments and world <= HUGE_WORLD:
        yield "SUM", torch.float32, world * MIB + 3
        yield "SUM", torch.float32, 2 * world * MIB + 5


def _of_reductions(
    family: str, payloads: Iterable[tuple[str, torch.dtype, int]], reduce: Reduction, suffix: str = ""
) -> Iterator[BitsCase]:
    for operation, dtype, size in payloads:
        name = f"{operation} {short_name(dtype)} {size}{suffix}"

        def compute(
            bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype, size: int = size
        ) -> Result:
            return reduce(bench, bench.data(name, size, dtype), getattr(dist.ReduceOp, operation))

        yield BitsCase(family, name, compute, large=size * dtype.itemsize >= LARGE)


def _all_reduce(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    dist.all_reduce(tensor, operation)
    return [tensor]


def _reduce_to(root: int, bench: Bench, tensor: Tensor, operation: Any) -> Result:
    dist.reduce(tensor, root, operation)
    return [tensor]


def _reduce_scatter_tensor(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    share = tensor.numel() // bench.world + 1 if tensor.numel() else 0
    whole = tensor.new_zeros(share * bench.world)
    whole[: tensor.numel()] = tensor
    output = torch.zeros(share, dtype=tensor.dtype)
    _c10d.reduce_scatter_tensor(output, whole, operation)
    return [output]


def _reduce_scatter(bench: Bench, tensor: Tensor, operation: Any) -> Result:
    # The entries of a list may differ in size, but in the same way on every rank: rank q's entry has q more elements.
    sizes = [tensor.numel() // bench.world + target if tensor.numel() else 0 for target in range(bench.world)]
    whole = tensor.repeat(2 + bench.world * bench.world // max(1, tensor.numel()))[: sum(sizes)]
    output = torch.zeros(sizes[bench.rank], dtype=tensor.dtype)
    dist.reduce_scatter(output, [part.clone() for part in torch.split_with_sizes(whole, sizes)], operation)
    return [output]


def reduction_cases(world: int) -> Iterator[BitsCase]:
    yield from _of_reductions("all_reduce", _payloads(world), _all_reduce)
    yield from _of_reductions("all_reduce", _large_payloads(world, several_segments=True), _all_reduce)
    for index, payload in enumerate(_payloads(world)):
        root = index % world
        yield from _of_reductions("reduce", [payload], partial(_reduce_to, root), f" to {root}")
    for root in range(world):
        payloads = [("SUM", torch.float32, size) for size in (1, 7, world, 101, 4097)]
        payloads += [("MAX", torch.float32, 1001), ("AVG", torch.float16, 101)]
        yield from _of_reductions("reduce", payloads, partial(_reduce_to, root), f" to root {root}")
    for payload, root in zip(
        _large_payloads(world, several_segments=True), itertools.cycle((0, world - 1, 1)), strict=False
    ):
        yield from _of_reductions("reduce", [payload], partial(_reduce_to, root), f" to {root}")
    for family, reduce in (("reduce_scatter_tensor", _reduce_scatter_tensor), ("reduce_scatter", _reduce_scatter)):
        yield from _of_reductions(family, _payloads(world), reduce)
        yield from _of_reductions(family, _large_payloads(world, several_segments=False), reduce)
