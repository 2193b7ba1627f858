"""Images on CUDA devices: DDP, mixed precision with a scaler, channels last, SyncBatchNorm; the best is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Stripes(Dataset[tuple[torch.Tensor, int]]):
    """Pictures with stripes one way or the other."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        torch_generator = torch.Generator().manual_seed(index)
        picture = torch.randn(3, 8, 8, generator=torch_generator) / 4
        (picture[:, ::2] if index % 2 else picture[:, :, ::2]).add_(1)
        return picture, index % 2


def network() -> nn.Module:
    """A small convolutional one."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def right(model: Any, loader: Any) -> float:
    """The share of pictures that it knows, over all ranks."""
    model.eval()
    counts = torch.zeros(2, device="cuda")
    with torch.no_grad(), torch.autocast("cuda"):
        for pictures, targets in loader:
            found = model(pictures.cuda(non_blocking=True)).argmax(1)
            counts += torch.stack([(found == targets.cuda(non_blocking=True)).sum(), torch.tensor(len(found)).cuda()])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def main(folder: str, epochs: int = 3) -> dict[str, Any]:
    """Train and validate."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    torch.manual_seed(0)
    synchronised: Any = nn.SyncBatchNorm
    model: Any = synchronised.convert_sync_batchnorm(network()).cuda().to(memory_format=torch.channels_last)
    model = DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
    data = Stripes()
    sampler: Any = DistributedSampler(data)
    loader: Any = DataLoader(data, 8, sampler=sampler, pin_memory=True, drop_last=True)
    best = 0.0
    kinds: set[str] = set()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        model.train()
        for pictures, targets in loader:
            pictures = pictures.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            with torch.autocast("cuda"):
                output = model(pictures)
                loss: Any = nn.functional.cross_entropy(output, targets.cuda(non_blocking=True))
            kinds.add(str(output.dtype))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
        known = right(model, loader)
        if known >= best and dist.get_rank() == 0:
            torch.save(
                {"model": model.state_dict(), "scaler": scaler.state_dict(), "known": known}, Path(folder) / "best.pt"
            )
        best = max(best, known)
    dist.barrier()
    kept = torch.load(Path(folder) / "best.pt", map_location={"cuda:0": f"cuda:{local}"})
    model.load_state_dict(kept["model"])
    found = {
        "best": best,
        "again": right(model, loader),
        "scale": scaler.get_scale(),
        "half": float(kinds == {"torch.float16"}),
        "last": float(model.module[0].weight.is_contiguous(memory_format=torch.channels_last)),
        "weights": float(model.module[8].weight.double().sum()),
    }
    dist.destroy_process_group()
    return found
