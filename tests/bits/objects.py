"""Collectives of objects, and groups of some of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.bits.bench import Bench, BitsCase, Result, Tensor, short_name

__all__ = ["group_cases", "object_cases"]

_c10d: Any = dist.distributed_c10d


def object_cases(world: int) -> Iterator[BitsCase]:
    def all_gather_object(bench: Bench) -> Result:
        everyone: list[Any] = [None] * bench.world
        dist.all_gather_object(everyone, {"rank": bench.rank, "text": "x" * bench.rank})
        return repr(everyone)

    def broadcast_object_list(bench: Bench) -> Result:
        reported: list[Any] = [("from the root", 1.5), {2}] if bench.rank == 0 else [None, None]
        dist.broadcast_object_list(reported, 0)
        return repr(reported)

    def gather_object(bench: Bench) -> Result:
        collected: list[Any] | None = [None] * bench.world if bench.rank == 1 else None
        dist.gather_object([bench.rank], collected, 1)
        return repr(collected)

    def scatter_object_list(bench: Bench) -> Result:
        dealt: list[Any] = [None]
        whole: Any = [f"for {target}" for target in range(bench.world)] if bench.rank == 0 else None
        dist.scatter_object_list(dealt, whole, 0)
        return repr(dealt)

    for call in (all_gather_object, broadcast_object_list, gather_object, scatter_object_list):
        yield BitsCase("objects", call.__name__, call)


# -- groups ------------------------------------------------------------------------------------------------------------


def group_cases(world: int) -> Iterator[BitsCase]:
    """Groups sort their ranks, whatever order they are given in; each group has its own order of summation."""

    def all_reduce(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def reduce(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.reduce(tensor, group=group, group_dst=size - 1)
        return [tensor]

    def reduce_scatter(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        output = torch.zeros(5, dtype=tensor.dtype)
        _c10d.reduce_scatter_tensor(output, tensor[: 5 * size].clone(), group=group)
        return [output]

    def all_gather(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor, group=group)
        return parts

    def broadcast(bench: Bench, group: Any, tensor: Tensor, size: int) -> Result:
        dist.broadcast(tensor, group=group, group_src=size - 1)
        return [tensor]

    groups = dict.fromkeys(
        [
            (world - 1, 0),
            tuple(range(1, world)),
            tuple(range(world))[::-1],
            tuple(range(0, world, 2)),
            tuple(sorted({0, world // 2, world - 1})),
        ]
    )
    for members in groups:
        for call in (all_reduce, reduce, reduce_scatter, all_gather, broadcast):
            for dtype in (torch.float32, torch.float16, torch.int32):
                name = f"{call.__name__} {short_name(dtype)} in {list(members)}"

                def compute(
                    bench: Bench,
                    name: str = name,
                    call: Callable[[Bench, Any, Tensor, int], Result] = call,
                    dtype: torch.dtype = dtype,
                    members: tuple[int, ...] = members,
                ) -> Result:
                    group = bench.group(members)
                    if bench.rank not in members:
                        return []
                    return call(bench, group, bench.data(name, 1001, dtype), len(members))

                yield BitsCase("groups", name, compute)
