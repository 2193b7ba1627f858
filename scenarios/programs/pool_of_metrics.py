"""Metrics over a pool of processes that form a group of their own, as libraries of metrics test theirs."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORKERS = 2


class Accuracy:
    """A metric whose state is two sums, which are added up over the group."""

    def __init__(self) -> None:
        self.right = torch.tensor(0)
        self.all = torch.tensor(0)

    def update(self, guesses: torch.Tensor, targets: torch.Tensor) -> None:
        """Count one batch."""
        self.right += (guesses == targets).sum()
        self.all += targets.numel()

    def compute(self) -> float:
        """The share of right guesses on all processes."""
        for state in (self.right, self.all):
            dist.all_reduce(state)
        return float(self.right / self.all)


class Median:
    """A metric whose state is a list, which is gathered with its lengths."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def update(self, values: torch.Tensor) -> None:
        """Keep one batch."""
        self.values.append(values)

    def compute(self) -> float:
        """The median over all processes."""
        mine = torch.cat(self.values)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(WORKERS)]
        dist.all_gather(sizes, torch.tensor([mine.numel()]))
        longest = int(torch.cat(sizes).max())
        gathered = [torch.zeros(longest) for _ in range(WORKERS)]
        dist.all_gather(gathered, torch.nn.functional.pad(mine, (0, longest - mine.numel())))
        parts = [part[: int(size)] for part, size in zip(gathered, sizes, strict=True)]
        return float(torch.cat(parts).median())


def join(rank: int, port: int) -> None:
    """Each process of the pool takes one of these, for it waits here for the other."""
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)


def compute(rank: int, batches: int, seed: int) -> dict[str, float]:
    """What the metrics say of every second batch, put together over the group."""
    data = torch.Generator().manual_seed(seed)
    accuracy, median = Accuracy(), Median()
    for batch in range(batches):
        scores = torch.randn(8 + batch, 4, generator=data)
        targets = torch.randint(0, 4, (8 + batch,), generator=data)
        if batch % WORKERS == dist.get_rank():
            accuracy.update(scores.argmax(1), targets)
            median.update(scores[:, 0])
    return {"asked": rank, "accuracy": accuracy.compute(), "median": median.compute()}


def main(batches: int = 6) -> dict[str, Any]:
    """Three rounds on one pool; what its processes found."""
    port = 41_000 + int(os.environ["RANK"])
    context: Any = mp.get_context("fork")
    with context.Pool(WORKERS) as pool:
        pool.starmap(join, [(rank, port) for rank in range(WORKERS)], chunksize=1)
        rounds = []
        for seed in range(3):
            work = functools.partial(compute, batches=batches, seed=seed)
            rounds.append(pool.map(work, range(WORKERS), chunksize=1))
        pool.close()
        pool.join()
    return {
        "rounds": [[found["accuracy"], found["median"]] for found, _ in rounds],
        "same": [one["accuracy"] == other["accuracy"] and one["median"] == other["median"] for one, other in rounds],
    }
