"""A trainer for torchrun: DDP on the GPU of the local rank, a snapshot each epoch, and on from it after a failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simdist


class Trainer:
    """Trains a model, and writes down how far it is."""

    def __init__(self, model: nn.Module, data: Any, optimizer: torch.optim.Optimizer, snapshot: Path) -> None:
        self.local_rank, self.rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
        self.model: Any = model.to(self.local_rank)
        self.data, self.optimizer, self.snapshot = data, optimizer, snapshot
        self.epochs_run = 0
        if snapshot.exists():
            known = torch.load(snapshot, map_location=f"cuda:{self.local_rank}")
            self.model.load_state_dict(known["model"])
            self.epochs_run = known["epochs"]
        self.model = DistributedDataParallel(self.model, device_ids=[self.local_rank])

    def train(self, epochs: int) -> None:
        """Run the epochs that are left."""
        for epoch in range(self.epochs_run, epochs):
            simdist.step(epoch)
            self.data.sampler.set_epoch(epoch)
            for source, targets in self.data:
                self.optimizer.zero_grad()
                output = self.model(source.to(self.local_rank))
                loss: Any = nn.functional.mse_loss(output, targets.to(self.local_rank))
                loss.backward()
                self.optimizer.step()
            if self.rank == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch + 1}, self.snapshot)
            dist.barrier()


def main(folder: str, epochs: int = 4) -> dict[str, Any]:
    """Train to the end, in however many lives."""
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(5)
    inputs = torch.randn(64, 20)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    data: Any = DataLoader(dataset, batch_size=4, pin_memory=True, sampler=DistributedSampler(dataset))
    model = nn.Linear(20, 1)
    trainer = Trainer(model, data, torch.optim.SGD(model.parameters(), lr=0.1), Path(folder) / "snapshot.pt")
    begun_at = trainer.epochs_run
    trainer.train(epochs)
    found = {
        "begun_at": begun_at,
        "device": str(model.weight.device.type),
        "weights": model.weight.sum().item(),
        "error": (model.weight - 1).abs().max().item(),
    }
    dist.destroy_process_group()
    return found
