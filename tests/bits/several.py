"""Collectives of several tensors at once, and of sparse ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.bits.bench import FLOATS, Bench, BitsCase, Result, Tensor, short_name

__all__ = ["coalesced_cases", "sparse_cases"]

_c10d: Any = dist.distributed_c10d


def coalesced_cases(world: int) -> Iterator[BitsCase]:
    sizes = (3, 1000, 0, 17)

    def several(bench: Bench, name: str, dtype: torch.dtype) -> list[Tensor]:
        return [bench.data(f"{name} {size}", size, dtype) for size in sizes]

    for operation in ("SUM", "AVG", "MAX"):
        for dtype in (*FLOATS, torch.int32, torch.complex64):
            name = f"{operation} {short_name(dtype)}"

            def coalesced(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                _c10d.all_reduce_coalesced(tensors, getattr(dist.ReduceOp, operation))
                return tensors

            def managed(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                with _c10d._coalescing_manager():
                    for tensor in tensors:
                        dist.all_reduce(tensor, getattr(dist.ReduceOp, operation))
                return tensors

            def in_flight(
                bench: Bench, name: str = name, operation: str = operation, dtype: torch.dtype = dtype
            ) -> Result:
                tensors = several(bench, name, dtype)
                works = [dist.all_reduce(t, getattr(dist.ReduceOp, operation), async_op=True) for t in tensors]
                for work in reversed(works):
                    work.wait()
                return tensors

            yield BitsCase("coalesced", f"all_reduce_coalesced {name}", coalesced)
            yield BitsCase("coalesced", f"managed all_reduce {name}", managed)
            yield BitsCase("coalesced", f"all_reduces in flight {name}", in_flight)

    def all_gather_coalesced(bench: Bench) -> Result:
        mine = [bench.data(f"gathered {size}", size, torch.float32) for size in (3, 100)]
        lists = [[torch.zeros_like(tensor) for tensor in mine] for _ in range(bench.world)]
        dist.all_gather_coalesced(lists, mine)
        return [tensor for parts in lists for tensor in parts]

    def managed_all_gather(bench: Bench) -> Result:
        mine = [bench.data(f"gathered {size}", size, torch.float32) for size in (3, 100)]
        outputs = [torch.zeros(bench.world * tensor.numel()) for tensor in mine]
        with _c10d._coalescing_manager():
            for output, tensor in zip(outputs, mine, strict=True):
                _c10d.all_gather_into_tensor(output, tensor)
        return outputs

    def managed_reduce_scatter(bench: Bench) -> Result:
        inputs = [bench.data(f"scattered {size}", bench.world * size, torch.float32) for size in (3, 100)]
        outputs = [torch.zeros(tensor.numel() // bench.world) for tensor in inputs]
        with _c10d._coalescing_manager():
            for output, tensor in zip(outputs, inputs, strict=True):
                _c10d.reduce_scatter_tensor(output, tensor)
        return outputs

    for call in (all_gather_coalesced, managed_all_gather, managed_reduce_scatter):
        yield BitsCase("coalesced", call.__name__, call)


def sparse_cases(world: int) -> Iterator[BitsCase]:
    for dtype in (torch.float32, torch.float64, torch.int64):
        for shape in ((8,), (4, 6), (5, 3)):
            name = f"{short_name(dtype)} {shape}"

            def compute(
                bench: Bench, name: str = name, dtype: torch.dtype = dtype, shape: tuple[int, ...] = shape
            ) -> Result:
                hybrid = shape == (5, 3)
                rows = [[bench.rank % shape[0], 3, 1, 3]]
                columns = [] if len(shape) == 1 or hybrid else [[2, 0, bench.rank % shape[1], 0]]
                values = bench.data(name, 4 * (3 if hybrid else 1), dtype)
                tensor = torch.sparse_coo_tensor(
                    torch.tensor(rows + columns), values.reshape(4, 3) if hybrid else values, shape
                )
                dist.all_reduce(tensor)
                tensor = tensor.coalesce()
                return [tensor.indices(), tensor.values()]

            yield BitsCase("sparse", name, compute)
