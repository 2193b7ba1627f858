"""Data-parallel training of a small classifier on scikit-learn's handwritten digits, with checkpoints and resume."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simdist

TEST_SAMPLES = 297


def train(
    checkpoint_dir: str,
    epochs: int = 3,
    batch_size: int = 32,
    checkpoint_every: int = 5,
    lr: float = 0.3,
    seed: int = 0,
) -> dict[str, Any]:
    """Train for `epochs`, or from where the checkpoint in `checkpoint_dir` left off to there.

    Returns a hash over the final parameters, the accuracy on held-out digits, and the number of steps.
    """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoint = Path(checkpoint_dir) / "checkpoint.pt"

    torch.manual_seed(seed)
    train_set, test_set = load_data()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    first_step = load_checkpoint(checkpoint, net, optimizer)
    model = DistributedDataParallel(net)
    settle_buckets(model)

    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train_set, shuffle=True, seed=seed)
    loader = DataLoader(train_set, batch_size=batch_size, sampler=sampler, num_workers=0, drop_last=True)
    total_steps = epochs * len(loader)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(first_step // len(loader), epochs):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader, start=epoch * len(loader)):
            if step < first_step:  # done in an earlier life, in the middle of this epoch
                continue
            simdist.step(step)
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
            if (step + 1) % checkpoint_every == 0 or step + 1 == total_steps:
                if rank == 0:
                    save_checkpoint(checkpoint, net, optimizer, step + 1)
                dist.barrier()  # nobody runs ahead of a checkpoint that is not there yet

    result = {"parameters": parameter_hash(net), "accuracy": accuracy(net, test_set), "steps": total_steps}
    if rank == 0:
        print(f"accuracy {result['accuracy']:.3f} after {total_steps} steps")
    dist.destroy_process_group()
    return result


def settle_buckets(model: nn.Module) -> None:
    """Run one backward pass for nothing, so that a resumed run repeats the uninterrupted one bit for bit.

    After its first backward DDP lays out its bucket anew, in the order in which gradients arrived (torch 2.13). Where
    an element lies in the bucket decides in which order a ring adds it up, so without this the first step of each life
    would round differently from the same step in the middle of a life.
    """
    model(torch.zeros(1, 64)).sum().backward()
    model.zero_grad()


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits, shuffled always the same: 1500 to train with and 297 to test with."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.data, dtype=torch.float32)[order] / 16.0
    labels = torch.tensor(data.target, dtype=torch.int64)[order]
    cut = len(labels) - TEST_SAMPLES
    return TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])


def save_checkpoint(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the state after `step` steps; a reader sees the old file or the new one, never a part."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())  # or a power cut may leave the new name without the bytes
    os.replace(unfinished, path)  # noqa: PTH105 - the classic idiom, as users write it
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)  # or the old file may be back, and with it more lost steps than one expects
    os.close(folder)


def load_checkpoint(path: Path, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restore the state if there is one; the step to go on with."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def parameter_hash(net: nn.Module) -> str:
    """SHA-256 over the bytes of every parameter."""
    digest = hashlib.sha256()
    for parameter in net.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def accuracy(net: nn.Module, data: TensorDataset) -> float:
    """The share of `data` that `net` gets right."""
    images, labels = data.tensors
    with torch.no_grad():
        return float((net(images).argmax(dim=1) == labels).float().mean())
