"""Training code as it is written for GPUs: NCCL, a device for each rank, DDP with `device_ids`."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist


def train(steps: int = 4) -> dict[str, Any]:
    """Train a small model on the device of the local rank; what is left of it."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    model = DistributedDataParallel(module, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    data = torch.randn(32, 8).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    dist.barrier()
    weights = [float(each.detach().sum()) for each in module.parameters()]
    dist.destroy_process_group()
    return {"weights": weights, "losses": losses, "fell": losses[0] - losses[-1]}


def skip(rank: int = 1) -> float:
    """Leave one all_reduce out on a rank, which goes on to something else; the sum that the others wait for."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    tensor = torch.ones(1024, device=device)
    dist.all_reduce(tensor)
    if dist.get_rank() == rank:
        time.sleep(3600)  # noqa: TID251  # virtual
    dist.all_reduce(tensor)
    return float(tensor.sum().item())


def train_layers(steps: int = 2, layers: int = 4, width: int = 256) -> float:
    """Train with a bucket of gradients for each layer, so that backward overlaps with collectives; the last loss."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    module = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())))
    bucket_mb = width * width * 4 / 2**20
    model = DistributedDataParallel(module.to(device), device_ids=[device.index], bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(width, width, device=device)
    last = 0.0
    for step in range(steps):
        simdist.step(step)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        last = loss.item()
    dist.destroy_process_group()
    return last
