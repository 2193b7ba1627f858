"""Training that stops in the middle of an epoch and goes on from the state of its loader: torchdata's."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler


class Noisy(Dataset[torch.Tensor]):
    """Numbers, with noise that the worker's generators draw."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), float(torch.rand(()))])


class Stream(IterableDataset[torch.Tensor]):
    """A rank's share of a stream, which knows how far it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        place, places = dist_rank() * workers + worker, 2 * workers
        while self.at < self.length:
            number, self.at = self.at, self.at + 1
            if number % places == place:
                yield torch.tensor([float(number)])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """How far it is."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.at = state["at"]


def dist_rank() -> int:
    """The rank, which a worker has inherited from its parent."""
    return RANK


RANK = 0


def loader(kind: str, workers: int, *, persistent: bool) -> tuple[Any, Any]:
    """A new loader and its sampler, as at the start of a program."""
    data: Any = Noisy() if kind == "map" else Stream(48)
    sampler: Any = StatefulDistributedSampler(data, shuffle=True, seed=3) if kind == "map" else None
    made = StatefulDataLoader(
        data,
        batch_size=3,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=persistent,
        snapshot_every_n_steps=2,
        generator=torch.Generator().manual_seed(5 + dist.get_rank()),
    )
    return made, sampler


def train(kind: str, workers: int, *, persistent: bool, folder: Path) -> dict[str, Any]:
    """Two epochs; a loader goes on from the state after the third batch of the second, which went through a file."""
    first, sampler = loader(kind, workers, persistent=persistent)
    batches = [batch.tolist() for batch in first]
    if sampler is not None:
        sampler.set_epoch(1)
    rest: list[Any] = []
    state: dict[str, Any] = {}
    for number, batch in enumerate(first):
        batches.append(batch.tolist())
        if number == 2:
            state = first.state_dict()
        elif number > 2:
            rest.append(batch[:, 0].tolist())
    file = folder / f"{kind} {workers} {persistent} {dist.get_rank()}.pt"
    torch.save(state, file)
    second, _ = loader(kind, workers, persistent=persistent)
    second.load_state_dict(torch.load(file, weights_only=False))
    again = [batch[:, 0].tolist() for batch in second]
    left = second.state_dict()
    return {
        "batches": batches,
        "goes on": again == rest and len(rest) > 0,
        "again": again,
        "state": hashlib.sha256(repr(plain(state)).encode()).hexdigest(),
        "left": hashlib.sha256(repr(plain(left)).encode()).hexdigest(),
    }


def plain(state: Any) -> Any:
    """A state as nested tuples, tensors and bytes as what they hold."""
    if isinstance(state, dict):
        return tuple((key, plain(state[key])) for key in sorted(state, key=str))
    if isinstance(state, list | tuple):
        return tuple(map(plain, state))
    if isinstance(state, torch.Tensor):
        return tuple(state.flatten().tolist())
    if isinstance(state, bytes):
        return plain(pickle.loads(state))
    return state


def main(folder: str) -> dict[str, Any]:
    """Each kind of data with each kind of workers."""
    global RANK
    dist.init_process_group("gloo")
    RANK = dist.get_rank()
    torch.manual_seed(RANK)
    random.seed(RANK)
    found = {}
    for kind in ("map", "stream"):
        for workers, persistent in ((0, False), (2, False), (2, True)):
            name = f"{kind}, {workers} workers{', persistent' if persistent else ''}"
            found[name] = train(kind, workers, persistent=persistent, folder=Path(folder))
            dist.barrier()
    dist.destroy_process_group()
    return found
