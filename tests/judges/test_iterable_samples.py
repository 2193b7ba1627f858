"""Data sets without indices: in loops that train each rank and each worker must yield its own share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.judges.programs import line_of, net, only_finding, run

Rows = IterableDataset[torch.Tensor]


class Everything(Rows):
    """Yields twenty-four rows, the same for all."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(row)) for row in range(24))


class ForRanks(Rows):
    """Each rank yields its own share, and all workers of a rank the same one."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        rank, size = dist.get_rank(), dist.get_world_size()
        return (torch.full((4,), float(row)) for row in range(rank, 24, size))


class ForWorkers(Rows):
    """Each worker of each rank yields its own share."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        shares = self.size * workers
        return (torch.full((4,), float(row)) for row in range(self.rank * workers + worker, 24, shares))


class Ones(Rows):
    """Yields rows that can't be distinguished."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.ones(4) for _ in range(24))


def train(rank: int, *, kind: type[Rows], workers: int = 0, steps: bool = True, wrapped: bool = True) -> None:
    model: nn.Module = DistributedDataParallel(net()) if wrapped else net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    how = "fork" if workers else None  # workers ask for the group of their rank
    for _ in range(2):
        for batch in DataLoader(kind(), batch_size=2, num_workers=workers, multiprocessing_context=how):
            loss = model(batch).sum()
            if steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def test_a_data_set_that_gives_all_ranks_the_same_is_found() -> None:
    found = only_finding(run(partial(train, kind=Everything), "samples"))

    assert found.problem == "all 3 ranks read the same batches in pass 0"
    assert (found.subject, found.rank) == ("Everything", 1)
    assert found.where == line_of(train, "for batch in")
    assert "a share of its own" in found.notes[0]


def test_a_data_set_that_gives_all_workers_the_same_is_found() -> None:
    found = only_finding(run(partial(train, kind=ForRanks, workers=2), "samples"))

    assert found.problem == "all 2 workers of a loader hand out the same batches: each sample is read 2 times"
    assert "get_worker_info" in found.notes[0]


@pytest.mark.parametrize(
    ("kind", "workers", "steps", "wrapped"),
    [
        (ForRanks, 0, True, True),
        (ForWorkers, 0, True, True),
        (ForWorkers, 2, True, True),
        (Ones, 2, True, True),
        (Everything, 0, False, True),  # evaluates
        (Everything, 0, True, False),  # the ranks may form one replica
    ],
)
def test_shares_of_ranks_and_workers_are_left_alone(kind: type[Rows], workers: int, steps: bool, wrapped: bool) -> None:
    assert run(partial(train, kind=kind, workers=workers, steps=steps, wrapped=wrapped), "samples").ok
