"""The programs and names that the examples in docstrings use without an explanation."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import simdist

__all__ = ["train"]


def train() -> None:
    """Train four steps of a second each."""
    dist.init_process_group("gloo")
    for step in range(4):
        simdist.step(step)
        time.sleep(1)
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
