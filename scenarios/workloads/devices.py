"""Programs for hosts that have devices: ordinary training code that asks for CUDA."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["train"]


def train(steps: int = 5) -> dict[str, object]:
    """Train a small model with mixed precision, each rank on the device of its local rank."""
    dist.init_process_group("cpu:gloo,cuda:gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)).cuda(), device_ids=[local_rank]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=128.0)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        inputs = torch.randn(32, 8).pin_memory().cuda(non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's own gap
        scaler.step(optimizer)
        scaler.update()
        dist.all_reduce(loss.detach(), dist.ReduceOp.AVG)
        losses.append(loss.item())
    weights = [parameter.detach().cpu() for parameter in model.parameters()]
    used = torch.cuda.max_memory_allocated()
    dist.destroy_process_group()
    return {"weights": weights, "fell": losses[0] - losses[-1], "used": used, "devices": torch.cuda.device_count()}
