"""Data-parallel training as most scripts do it: a sampler, workers that load, TensorBoard, and torch.save."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info
from torch.utils.tensorboard import SummaryWriter


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points on a line, with noise that the worker's generators draw."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 64.0])
        noise = 0.01 * (random.random() + float(np.random.rand()) + float(torch.rand(())))
        return x, 3.0 * x + 1.0 + noise


def seed_worker(worker: int) -> None:
    """What the documentation advises: every generator follows torch's."""
    info = get_worker_info()
    assert info is not None
    random.seed(info.seed + worker)
    np.random.seed((info.seed + worker) % 2**32)


def main(folder: str, epochs: int = 3) -> dict[str, Any]:
    """Train, write, save and load again; what every process has in the end."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    data = Noisy()
    sampler: Any = DistributedSampler(data, shuffle=True, seed=7)
    generator = torch.Generator().manual_seed(11)
    loader: Any = DataLoader(
        data,
        batch_size=4,
        sampler=sampler,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    logs, checkpoint = Path(folder) / "logs", Path(folder) / "checkpoint.pt"
    writer: Any = SummaryWriter(str(logs)) if rank == 0 else None
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss: Any = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if writer is not None:
                writer.add_scalar("loss", loss.item(), step)
        if rank == 0:
            fresh = checkpoint.with_suffix(".new")
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, fresh)
            fresh.replace(checkpoint)
        dist.barrier()
    if writer is not None:
        writer.close()
    dist.barrier()
    loaded = torch.load(checkpoint)
    written = EventAccumulator(str(logs))
    written.Reload()
    scalars = [event.value for event in written.Scalars("loss")]
    parts = [loaded["model"]["weight"], loaded["model"]["bias"]]
    dist.destroy_process_group()
    return {
        "epoch": loaded["epoch"],
        "weights": [float(part.sum()) for part in parts],
        "written": len(scalars),
        "sum of losses": float(np.float64(sum(scalars))),
    }
