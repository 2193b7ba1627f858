"""A program whose settings come from Hydra, with a folder of its own for each process's run."""

from __future__ import annotations

import os
import sys
from typing import Any

import hydra
import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig

RESULT: dict[str, Any] = {}  # of this process: a function under `hydra.main` returns nothing


@hydra.main(version_base=None, config_path="settings", config_name="training")
def train(settings: Any) -> None:
    """Take some steps, all processes together."""
    dist.init_process_group("gloo")
    weight = torch.zeros(1)
    for step in range(settings.steps):
        gradient = torch.tensor([float(dist.get_rank() + step)])
        dist.all_reduce(gradient)
        weight -= settings.lr * gradient
    RESULT.update(weight=float(weight), job=HydraConfig.get().job.name, lr=settings.lr)
    dist.destroy_process_group()


def main(folder: str) -> dict[str, Any]:
    """Run it with an override on the command line; the outputs of the run go into `folder`."""
    sys.argv[1:] = ["lr=0.25", f"hydra.run.dir={folder}/{os.environ['RANK']}"]
    train()
    return RESULT
