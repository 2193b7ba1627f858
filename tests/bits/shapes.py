"""Tensors that are not contiguous in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from tests.bits.bench import Bench, BitsCase, Result, Tensor, short_name

__all__ = ["shaped_cases"]

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # of 210 elements
    "transposed": lambda flat: flat.reshape(14, 15).t(),
    "permuted": lambda flat: flat.reshape(5, 6, 7).permute(2, 0, 1),
    "channels last": lambda flat: flat.reshape(2, 3, 5, 7).to(memory_format=torch.channels_last),
    "offset": lambda flat: torch.cat([flat.new_zeros(3), flat])[3:],
}


def shaped_cases(world: int) -> Iterator[BitsCase]:
    def all_reduce(bench: Bench, tensor: Tensor) -> Result:
        dist.all_reduce(tensor)
        return [tensor]

    def reduce(bench: Bench, tensor: Tensor) -> Result:
        dist.reduce(tensor, 1)
        return [tensor]

    def broadcast(bench: Bench, tensor: Tensor) -> Result:
        dist.broadcast(tensor, 1)
        return [tensor]

    def all_gather(bench: Bench, tensor: Tensor) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(bench.world)]
        dist.all_gather(parts, tensor)
        return parts

    def gather(bench: Bench, tensor: Tensor) -> Result:
        parts = [torch.zeros_like(tensor) for _ in range(bench.world)] if bench.rank == 1 else None
        dist.gather(tensor, parts, 1)
        return parts or []

    def scatter(bench: Bench, tensor: Tensor) -> Result:
        output = torch.zeros_like(tensor)
        dist.scatter(output, [tensor.clone() for _ in range(bench.world)] if bench.rank == 1 else None, 1)
        return [output]

    def reduce_scatter(bench: Bench, tensor: Tensor) -> Result:
        output = torch.zeros_like(tensor)
        dist.reduce_scatter(output, [tensor.clone() for _ in range(bench.world)])
        return [output]

    def all_to_all(bench: Bench, tensor: Tensor) -> Result:
        outputs = [torch.zeros_like(tensor) for _ in range(bench.world)]
        dist.all_to_all(outputs, [tensor.clone() for _ in range(bench.world)])
        return outputs

    calls = (all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all)
    for call in calls:
        for layout, shape in LAYOUTS.items():
            for dtype in (torch.float32, torch.bfloat16, torch.complex64):
                name = f"{call.__name__} {layout} {short_name(dtype)}"

                def compute(
                    bench: Bench,
                    name: str = name,
                    call: Callable[[Bench, Tensor], Result] = call,
                    shape: Callable[[Tensor], Tensor] = shape,
                    dtype: torch.dtype = dtype,
                ) -> Result:
                    return call(bench, shape(bench.data(name, 210, dtype)))

                yield BitsCase("shapes", name, compute)
    for dtype in (torch.float32, torch.int64):
        yield BitsCase(
            "shapes",
            f"all_reduce scalar {short_name(dtype)}",
            lambda bench, dtype=dtype: all_reduce(bench, bench.data("scalar", 1, dtype).reshape(())),  # type: ignore[misc]
        )
