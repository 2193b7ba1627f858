"""Data that is read twice, never, or always in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    TensorDataset,
    get_worker_info,
    random_split,
)

from tests.corpus._entries import entry

SIZE = 48
LOOP = "for (given,) in loader"


def data() -> TensorDataset:
    return TensorDataset(torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0)))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, given: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(given).square().mean().backward()
    optimizer.step()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


@entry("huggingface/transformers#4398", "samples", line=LOOP)
def sampler_never_hears_of_the_epoch(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(2):
        if not buggy:
            sampler.set_epoch(epoch)
        for (given,) in loader:
            train_epoch(model, optimizer, given)


@entry("huggingface/accelerate#4071", "samples", line=LOOP)
def resume_begins_with_epoch_0_again(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(0 if buggy else epoch)
        for (given,) in loader:
            train_epoch(model, optimizer, given)


@entry("openspeech-team/openspeech#149", "samples", rank=1, line=LOOP)
def every_rank_reads_the_same_batches(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    torch.manual_seed(0)
    sampler: DistributedSampler[Any] | None = None if buggy else DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, shuffle=sampler is None)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


@entry("NVlabs/LongLive#71", "samples", line=LOOP)
def samplers_have_other_seeds(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=dist.get_rank() if buggy else 0)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


@entry("intelligent-machine-learning/dlrover#1553", "samples", line=LOOP)
def sampler_is_that_of_the_larger_world(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    size = dist.get_world_size() * (2 if buggy else 1)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=size, rank=dist.get_rank())
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


class OwnShuffle(Sampler[int]):
    """Shuffles, and takes every n-th sample."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.seed))
        return iter(order[dist.get_rank() :: dist.get_world_size()].tolist())


@entry("mlcommons/training#625", "samples", line=LOOP)
def own_samplers_shuffle_differently(buggy: bool) -> None:
    model, optimizer = trained()
    loader = DataLoader(data(), batch_size=4, sampler=OwnShuffle(dist.get_rank() if buggy else 7))
    for (given,) in loader:
        train_epoch(model, optimizer, given)


@entry("facebookresearch/spdl#1360", "samples", line=LOOP)
def generator_begins_anew_each_epoch(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    part = torch.utils.data.Subset(dataset, range(dist.get_rank(), SIZE, dist.get_world_size()))
    generator = torch.Generator()
    loader = DataLoader(part, batch_size=4, shuffle=True, generator=generator)
    for epoch in range(2):
        generator.manual_seed(0 if buggy else epoch)
        for (given,) in loader:
            train_epoch(model, optimizer, given)


@entry("hpcaitech/FastFold#141", "samples", rank=1, line=LOOP)
def sampler_is_always_that_of_rank_0(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    rank = 0 if buggy else dist.get_rank()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=rank)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


class Stream(IterableDataset[tuple[torch.Tensor]]):
    """The samples in order; each rank and each worker takes only its share, if the flags say so."""

    def __init__(self, *, for_ranks: bool, for_workers: bool) -> None:
        self.place, self.shares = (dist.get_rank(), dist.get_world_size()) if for_ranks else (0, 1)
        self.for_workers = for_workers

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        place, shares, info = self.place, self.shares, get_worker_info()
        if info is not None and self.for_workers:
            place, shares = place * info.num_workers + info.id, shares * info.num_workers
        return ((row,) for row in data().tensors[0][place::shares])


@entry("huggingface/datasets#5360", "samples", rank=1, line=LOOP)
def every_rank_reads_the_whole_stream(buggy: bool) -> None:
    model, optimizer = trained()
    loader = DataLoader(Stream(for_ranks=not buggy, for_workers=True), batch_size=4)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


@entry("huggingface/datasets#3423", "samples", line=LOOP)
def every_worker_reads_the_share_of_its_rank(buggy: bool) -> None:
    model, optimizer = trained()
    loader = DataLoader(Stream(for_ranks=True, for_workers=not buggy), batch_size=4, num_workers=2)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


@entry("Lightning-AI/pytorch-lightning#7728", "samples", line=LOOP)
def every_rank_splits_the_data_for_itself(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = data()
    generator = torch.Generator().manual_seed(dist.get_rank() if buggy else 7)
    part, _ = random_split(dataset, [36, 12], generator=generator)
    sampler: DistributedSampler[Any] = DistributedSampler(part)
    loader = DataLoader(part, batch_size=4, sampler=sampler)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


class Videos(Dataset[tuple[torch.Tensor]]):
    """Draws a video, whatever the index is, or takes that of the index."""

    def __init__(self, draws: bool) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (data().tensors[0][random.randrange(SIZE) if self.draws else index],)


@entry("pixeli99/SVD_Xtend#75", "samples", rank=1, line=LOOP)
def every_rank_draws_the_same_samples(buggy: bool) -> None:
    model, optimizer = trained()
    random.seed(42)
    dataset = Videos(draws=buggy)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


class Views(IterableDataset[int]):
    """Samples that are made of random numbers only when a batch is put together."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))

    def collate(self, numbers: Sequence[int]) -> tuple[torch.Tensor]:
        return (torch.rand(len(numbers), 4),)


@entry("threestudio-project/threestudio#195", "samples", rank=1, line=LOOP)
def every_rank_looks_from_the_same_angles(buggy: bool) -> None:
    model, optimizer = trained()
    torch.manual_seed(0 if buggy else dist.get_rank())
    loader = DataLoader(Views(), batch_size=4, collate_fn=Views().collate)
    for (given,) in loader:
        train_epoch(model, optimizer, given)


class Distorted(Dataset[tuple[torch.Tensor]]):
    """Changes each sample, with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(7)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (data().tensors[0][index] * float(self.generator.normal()),)

    def seed(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Distorted)
        info.dataset.generator = np.random.default_rng(info.seed)


@entry("TorchDSP/torchsig#343", "samples", line=LOOP)
def every_worker_has_a_copy_of_the_generator(buggy: bool) -> None:
    model, optimizer = trained()
    dataset = Distorted()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    seed = None if buggy else dataset.seed
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, worker_init_fn=seed)
    for (given,) in loader:
        train_epoch(model, optimizer, given)
