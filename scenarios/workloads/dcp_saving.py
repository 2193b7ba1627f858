"""FSDP2 with torch's distributed checkpoints (DCP), saved after each step: what a loss of power makes of them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

import simdist

__all__ = ["train"]

dcp: Any = checkpoint  # which does not say that it exports what it does


class Writer(FileSystemWriter):
    """DCP's own, but for what it sends the other ranks: not the whole path, which is another one in each run."""

    def storage_meta(self) -> StorageMeta | None:
        """The name of the checkpoint."""
        meta = super().storage_meta()
        return None if meta is None else StorageMeta(checkpoint_id=Path(str(self.path)).name, save_id=meta.save_id)


def train(
    folder: str,
    steps: int = 2,
    same_folder: bool = False,
    in_background: bool = False,
    in_process: bool = False,
    sync: bool = False,
) -> float:
    """Train for `steps`, or from the newest checkpoint to there; the sum of all weights.

    `same_folder` saves each checkpoint over the last, `in_background` by `async_save` in a thread, `in_process` in a
    process. With `sync` each checkpoint goes to a folder under another name, and gets its own when all of it is on the
    disk.
    """
    warnings.simplefilter("ignore")  # DCP's, that it overwrites
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 16, bias=False)
    fully_shard(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    first = _load(Path(folder), net)
    dist.barrier()
    pending: Any = None
    for step in range(first, steps):
        simdist.step(step)
        batch = torch.full((4, 16), float(step + 1 + dist.get_rank()))
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if pending is not None:
            pending.result()
        path = Path(folder) / ("checkpoint" if same_folder else f"checkpoint{step}")
        state = {"weight": net.weight, "step": step + 1}
        if in_background or in_process:
            kind = AsyncCheckpointerType.PROCESS if in_process else AsyncCheckpointerType.THREAD
            pending = dcp.async_save(
                state, storage_writer=Writer(path), checkpoint_id=path, async_checkpointer_type=kind
            )
        elif sync:
            _save_synced(state, path)
        else:
            dcp.save(state, storage_writer=Writer(path), checkpoint_id=path)
    if pending is not None:
        pending.result()
    weight: Any = net.weight
    total = float(weight.full_tensor().double().sum())
    dist.destroy_process_group()
    return total


def _load(folder: Path, net: torch.nn.Module) -> int:
    found = sorted(path for path in folder.glob("checkpoint*") if (path / ".metadata").exists() and not path.suffix)
    if not found:
        return 0
    state = {"weight": net.weight, "step": 0}
    dcp.load(state, checkpoint_id=found[-1])
    return int(str(state["step"]))


def _save_synced(state: dict[str, Any], path: Path) -> None:
    """What DCP 2.13 leaves to its user: bring the metadata and all names to the disk, and only then use the name."""
    unfinished = path.with_suffix(".unfinished")
    dcp.save(state, storage_writer=Writer(unfinished), checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        for each in (unfinished / ".metadata", unfinished):
            _sync(each)
        unfinished.rename(path)
        _sync(path.parent)
    dist.barrier()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
