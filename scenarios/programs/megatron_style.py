"""Tensor and data parallelism with process groups in module globals, as Megatron keeps them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

TENSOR_GROUP: Any = None
DATA_GROUP: Any = None
STEPS_DONE = 0


def initialize_model_parallel(tensor_size: int) -> None:
    """Split the world into groups of `tensor_size` for tensor parallelism, and across these for data parallelism."""
    global TENSOR_GROUP, DATA_GROUP
    size, rank = dist.get_world_size(), dist.get_rank()
    for start in range(0, size, tensor_size):
        ranks = list(range(start, start + tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            TENSOR_GROUP = group
    for offset in range(tensor_size):
        ranks = list(range(offset, size, tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            DATA_GROUP = group


class RowParallel(torch.nn.Module):
    """A linear layer whose inputs are split over the tensor group."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        whole = torch.nn.Linear(inputs, outputs, bias=False)
        self.weight = torch.nn.Parameter(
            whole.weight.detach().chunk(dist.get_world_size(TENSOR_GROUP), 1)[self.place()]
        )

    def place(self) -> int:
        """Which part is this process's."""
        return dist.get_rank(TENSOR_GROUP)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The output, summed over the tensor group."""
        mine = inputs.chunk(dist.get_world_size(TENSOR_GROUP), 1)[self.place()]
        part = torch.nn.functional.linear(mine, self.weight)
        summed = part.detach().clone()
        dist.all_reduce(summed, group=TENSOR_GROUP)
        return part + (summed - part.detach())


def main(steps: int = 4) -> dict[str, Any]:
    """Train; what every process has in the end."""
    global STEPS_DONE
    dist.init_process_group("gloo")
    initialize_model_parallel(2)
    torch.manual_seed(0)
    layer = RowParallel(8, 2)
    data = torch.Generator().manual_seed(dist.get_rank(DATA_GROUP))
    for _ in range(steps):
        layer.zero_grad()
        layer(torch.randn(4, 8, generator=data)).square().mean().backward()
        gradient = layer.weight.grad
        assert gradient is not None
        dist.all_reduce(gradient, group=DATA_GROUP)
        with torch.no_grad():
            layer.weight.sub_(0.05 * gradient)
        STEPS_DONE += 1
    whole = [torch.zeros_like(layer.weight) for _ in range(2)]
    dist.all_gather(whole, layer.weight.detach(), group=TENSOR_GROUP)
    dist.destroy_process_group()
    return {"weights": float(torch.cat(whole, 1).sum()), "steps": STEPS_DONE}
