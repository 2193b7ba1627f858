"""Loops of collectives, the skeleton of a training job: compute for a while, then all-reduce."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

import simdist


def compute_and_reduce(steps: int, compute_seconds: float, elements: int = 1024) -> dict[str, float]:
    """In each step, compute for `compute_seconds` and sum `elements` numbers over all ranks.

    Returns the last sum's first element.
    """
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.zeros(elements)
    for step in range(steps):
        simdist.step(step)
        time.sleep(compute_seconds)  # noqa: TID251 - the stand-in for compute; virtual in a simulation
        total = torch.full((elements,), float(rank + step))
        dist.all_reduce(total)
    dist.destroy_process_group()
    return {"sum": total[0].item()}
