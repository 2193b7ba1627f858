"""Data-parallel training of a compiled model: `torch.compile` around DDP, and around a function that asks its rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@torch.compile(backend="aot_eager")
def shifted(values: torch.Tensor) -> torch.Tensor:
    """Code whose constants are the process's own."""
    return values + dist.get_rank()


def main(steps: int = 4) -> dict[str, Any]:
    """Train; what every process has in the end."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model: Any = torch.compile(DistributedDataParallel(layers), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 4, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    total = torch.stack(losses)
    dist.all_reduce(total)
    mine = shifted(torch.zeros(1))
    ranks = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, mine)
    weights = float(sum(parameter.detach().double().sum() for parameter in model.parameters()))
    dist.destroy_process_group()
    return {"losses": total.tolist(), "weights": weights, "ranks": [int(each.item()) for each in ranks]}
