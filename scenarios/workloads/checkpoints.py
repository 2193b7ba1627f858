"""A program that keeps several checkpoints, and a fault of its own: one of them is torn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import torch.distributed as dist

import simdist
from simdist.faults import RankFault, StruckRank
from simdist.values import Whole

__all__ = ["TornFile", "train"]


class TornFile(RankFault):
    """A file loses its end, as when a machine goes down before all of it was written."""

    path: str
    keep_bytes: Annotated[int, Whole(least=0)] = 100

    def strike(self, rank: StruckRank) -> None:
        """Cut the file off."""
        os.truncate(self.path, self.keep_bytes)

    def begins(self) -> str:
        """Which file."""
        return f"{Path(self.path).name} is cut off after {self.keep_bytes} bytes"


def train(folder: str, steps: int = 6) -> dict[str, int]:
    """Add up what all ranks say in each step; go on from the newest checkpoint that can be read."""
    dist.init_process_group("gloo")
    first, total = _newest(Path(folder))
    began = first
    for step in range(first, steps):
        value = torch.tensor([float((dist.get_rank() + 1) * step)])
        dist.all_reduce(value)
        total += int(value.item())
        if dist.get_rank() == 0:
            torch.save({"step": step, "total": total}, f"{folder}/checkpoint-{step}.pt")
            simdist.point("saved")
    dist.destroy_process_group()
    return {"total": total, "began": began}


def _newest(folder: Path) -> tuple[int, int]:
    """The step to go on with and the total so far, as rank 0 finds them."""
    found = torch.zeros(2, dtype=torch.int64)
    if dist.get_rank() == 0:
        for path in sorted(folder.glob("checkpoint-*.pt"), reverse=True):
            try:
                content = torch.load(path, weights_only=True)
            except (EOFError, RuntimeError):  # torn
                continue
            found = torch.tensor([content["step"] + 1, content["total"]])
            break
    dist.broadcast(found, 0)
    return int(found[0]), int(found[1])
