"""Trainings that resume from a checkpoint and then differ from an uninterrupted run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.corpus._entries import entry

EPOCHS, SIZE = 2, 16


def train(folder: str, **bugs: bool) -> None:
    """Train two epochs of two steps, with a checkpoint after each step; each of `bugs` is one mistake."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
    data = TensorDataset(torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(1)))
    sampler: DistributedSampler[Any] = DistributedSampler(data, size, rank, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler, generator=torch.Generator())
    per_epoch = len(loader)
    done, mine = 0, {}
    shared = Path(folder, "shared.pt")
    if shared.exists():
        saved = torch.load(shared)
        mine = torch.load(Path(folder, f"rank{rank}.{saved['done']}.pt"))
        done = saved["done"] + bool(bugs.get("counter"))
        model.load_state_dict(saved["model"])
        if not (bugs.get("optimizer") and rank == 1):
            optimizer.load_state_dict(mine["optimizer"])
        if not bugs.get("scheduler"):
            scheduler.load_state_dict(saved["scheduler"])
        if not bugs.get("scaler"):
            scaler.load_state_dict(saved["scaler"])
    for epoch in range(done // per_epoch, EPOCHS):
        sampler.set_epoch(0 if bugs.get("epoch") and done else epoch)
        for index, (given,) in enumerate(loader):
            if epoch * per_epoch + index < done:
                continue
            if mine and epoch * per_epoch + index == done and not bugs.get("generator"):
                torch.set_rng_state(mine["generator"])
            optimizer.zero_grad()
            loss = model(given).square().mean()
            scaler.scale(loss).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                assert parameter.grad is not None
                parameter.grad /= size
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            done_now = epoch * per_epoch + index + 1
            own = {"optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
            torch.save(own, Path(folder, f"rank{rank}.{done_now}.pt"))
            dist.barrier()
            if rank == 0:
                saved = {"done": done_now, "model": model.state_dict(), "scheduler": scheduler.state_dict()}
                torch.save({**saved, "scaler": scaler.state_dict()}, Path(folder, "new.pt"))
                Path(folder, "new.pt").replace(shared)
            dist.barrier()


@entry("alibaba/TorchEasyRec#664", "resume", resumes=True)
def scheduler_is_not_saved(folder: str, buggy: bool) -> None:
    train(folder, scheduler=buggy)


@entry("NVIDIA/Megatron-LM#6858", "resume", resumes=True)
def generators_are_not_restored(folder: str, buggy: bool) -> None:
    train(folder, generator=buggy)


@entry("huggingface/accelerate#4233", "resume", resumes=True)
def epoch_of_the_sampler_is_not_restored(folder: str, buggy: bool) -> None:
    train(folder, epoch=buggy)


@entry("huggingface/transformers#34053", "resume", resumes=True)
def gradient_scaler_is_not_saved(folder: str, buggy: bool) -> None:
    train(folder, scaler=buggy)


@entry("allenai/allennlp#4693", "resume", rank=1, resumes=True)
def optimizer_of_one_rank_is_lost(folder: str, buggy: bool) -> None:
    train(folder, optimizer=buggy)


@entry("huggingface/accelerate#2016", "resume", resumes=True)
def one_step_is_left_out(folder: str, buggy: bool) -> None:
    train(folder, counter=buggy)


def save_beside(folder: str, *, live: bool, late: bool) -> None:
    """Write checkpoints in a thread; `live`: with the model's present values, `late`: with a later step's number."""
    rank = dist.get_rank()
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    path, counter, writer = Path(folder, "saved.pt"), {"done": 0}, None
    if path.exists():
        saved = torch.load(path)
        counter["done"] = saved["done"]
        with torch.no_grad():
            weight.copy_(saved["weight"])
    while counter["done"] < 5:
        optimizer.zero_grad()
        weight.grad = torch.full((4,), 1.0 + counter["done"])
        dist.all_reduce(weight.grad)
        optimizer.step()
        counter["done"] += 1
        if writer is not None:
            writer.join()
        if rank == 0:
            kept = weight.detach() if live else weight.detach().clone()
            done = counter["done"]

            def write(kept: torch.Tensor = kept, done: int = done) -> None:
                time.sleep(0.5)  # a slow disk
                torch.save({"weight": kept, "done": counter["done"] if late else done}, Path(folder, "new.pt"))
                Path(folder, "new.pt").replace(path)

            writer = threading.Thread(target=write)
            writer.start()
        dist.barrier()
        time.sleep(0.3)
    if writer is not None:
        writer.join()


@entry("pytorch/pytorch#144657", "resume", resumes=True)
def checkpoint_is_written_while_the_next_step_changes_it(folder: str, buggy: bool) -> None:
    save_beside(folder, live=buggy, late=False)


@entry("NVIDIA-NeMo/Megatron-Bridge#3267", "resume", resumes=True)
def checkpoint_names_the_step_at_which_it_was_written(folder: str, buggy: bool) -> None:
    save_beside(folder, live=False, late=buggy)
