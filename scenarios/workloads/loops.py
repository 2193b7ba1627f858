"""Loops of collectives, the skeleton of a training job: compute for a while, then all-reduce."""

from __future__ import annotations

import signal
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


def reduce_with_retries(steps: int) -> dict[str, float]:
    """In each step sum the step's number over all ranks, and try again when the call fails.

    Returns the sum of all steps, and how often this rank had to try again.
    """
    dist.init_process_group("gloo")
    total, retries = 0.0, 0
    for step in range(steps):
        simdist.step(step)
        value = torch.full((16,), float(step))
        while True:
            try:
                dist.all_reduce(value)
            except ConnectionError:  # nothing was sent: the call can be made again
                retries += 1
            else:
                break
        total += value[0].item()
    dist.destroy_process_group()
    return {"sum": total, "retries": retries}


def leave_together(steps: int = 6) -> dict[str, int]:
    """Count steps until any rank has got SIGTERM; all of them agree on it, and leave in the same step."""
    got = torch.zeros(())

    def note(number: int, frame: object) -> None:
        got.fill_(1.0)

    signal.signal(signal.SIGTERM, note)
    dist.init_process_group("gloo")
    done = 0
    for step in range(steps):
        simdist.step(step)
        anyone = got.clone()
        dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
        if anyone.item():
            break
        done += 1
    dist.destroy_process_group()
    return {"steps": done, "signals": int(got.item())}
