"""What the examples in docstrings take for granted: programs, and the names that an example does not explain."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import simdist

__all__ = ["train"]


def train() -> None:
    """Four steps, of a second each."""
    dist.init_process_group("gloo")
    for step in range(4):
        simdist.step(step)
        time.sleep(1)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
