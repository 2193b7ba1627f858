"""Tensor parallel on CUDA devices, with a sharded sequence or without, against the model in one piece."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Toy(nn.Module):
    """Two layers, of which the second gathers what the first has spread."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output."""
        found: torch.Tensor = self.out_proj(self.relu(self.in_proj(x)))
        return found


def main(steps: int = 4, shards_sequence: bool = False) -> dict[str, Any]:
    """Train in parallel and in one piece; each rank has a part of the sequence, or all of it."""
    size = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (size,))  # which makes the group, and selects the device
    torch.manual_seed(0)
    whole = Toy().to("cuda")
    plan: Any = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
    if shards_sequence:
        spread, gathered = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
        plan = {"in_proj": spread, "out_proj": gathered}
    parallel: Any = parallelize_module(copy.deepcopy(whole), mesh, plan)
    models = {"parallel": parallel, "whole": whole}
    optimizers = {name: torch.optim.AdamW(each.parameters(), lr=0.05, foreach=True) for name, each in models.items()}
    rank = dist.get_rank()
    own = slice(4 * rank, 4 * rank + 4) if shards_sequence else slice(None)
    for step in range(steps):
        torch.manual_seed(step)
        inputs = torch.rand(4 * size, 10, device="cuda")
        for name, each in models.items():
            optimizers[name].zero_grad()
            found: Any = each(inputs[own] if name == "parallel" else inputs)
            found.sum().backward()
            optimizers[name].step()
    pairs = zip(parallel.parameters(), whole.parameters(), strict=True)
    apart = [float((one.full_tensor() - two).detach().abs().max()) for one, two in pairs]
    rows = parallel.in_proj.weight.to_local().shape[0]
    dist.destroy_process_group()
    return {"apart": max(apart), "rows": rows}
