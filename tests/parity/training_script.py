"""A training script as people write it for torchrun: DDP on the digits data set, with a checkpoint at the end.

Nothing in here knows about simdist.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the accuracy over the whole test set; every rank evaluates its share."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model.eval()
    with torch.no_grad():
        hits = (model(inputs[rank::world_size]).argmax(1) == targets[rank::world_size]).sum()
    counts = torch.tensor([float(hits), float(len(inputs[rank::world_size]))])
    dist.all_reduce(counts)
    model.train()
    return float(counts[0] / counts[1])


def main(directory: str, epochs: int = 2) -> dict[str, Any]:
    """Train, save, load again, and return what a test compares."""
    dist.init_process_group("gloo")
    # The model must be gone before its group: real Gloo's may otherwise hang when it is destroyed (torch 2.13).
    outcome = train_and_save(directory, epochs)
    dist.destroy_process_group()
    return outcome


def train_and_save(directory: str, epochs: int) -> dict[str, Any]:
    """Do the training."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(1234)
    random.seed(1234 + rank)
    rng = np.random.default_rng(1234 + rank)

    from sklearn.datasets import load_digits  # takes seconds to import, and most importers of this file do not run it

    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 16
    targets = torch.tensor(digits.target)
    train = TensorDataset(inputs[:600], targets[:600])
    sampler: DistributedSampler[Any] = DistributedSampler(train, shuffle=True, seed=7)
    loader = DataLoader(train, batch_size=25, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    losses, accuracies = [], []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            noisy = batch + torch.from_numpy(rng.normal(0, 0.01, batch.shape)).float() * random.random()
            loss = nn.functional.cross_entropy(ddp(noisy), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch's own gap
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        accuracies.append(evaluate(ddp, inputs[600:800], targets[600:800]))

    path = Path(directory) / "checkpoint.pt"
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    saved = torch.load(path, weights_only=True)
    for name, value in model.state_dict().items():
        if "running" not in name:  # batch statistics differ between ranks until the next forward
            assert torch.equal(value, saved["model"][name]), name
    parameters = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return {"losses": losses, "accuracies": accuracies, "parameters": parameters}


if __name__ == "__main__":
    main(".")
