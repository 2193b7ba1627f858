"""Each sample must be read once in an epoch, and in another order in the next; only in loops that train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, Subset, TensorDataset, random_split
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from tests.judges.programs import line_of, net, only_finding, run

SIZE = 50
MakeLoader = Callable[[TensorDataset, int], Any]


def data() -> TensorDataset:
    return TensorDataset(torch.arange(SIZE * 4.0).reshape(SIZE, 4))


def train(rank: int, *, loader: MakeLoader, epochs: int = 2, sets_epoch: bool = True, steps: bool = True) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    made = loader(data(), rank)
    for epoch in range(epochs):
        if sets_epoch and isinstance(made.sampler, DistributedSampler):
            made.sampler.set_epoch(epoch)
        for (batch,) in made:
            loss = model(batch).sum()
            if steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def alone(rank: int, *, loader: MakeLoader) -> None:
    """Train without communication."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for (batch,) in loader(data(), rank):
        weight.grad = batch[0]
        optimizer.step()


def shared(dataset: TensorDataset, _: int, **settings: Any) -> Any:
    return DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset, **settings))


@pytest.mark.parametrize("settings", [{}, {"drop_last": True}, {"shuffle": False}])
def test_a_distributed_sampler_with_its_epoch_is_left_alone(settings: dict[str, Any]) -> None:
    assert run(partial(train, loader=partial(shared, **settings)), "samples").ok


def test_a_missing_set_epoch_is_found() -> None:
    result = run(partial(train, loader=shared, sets_epoch=False), "samples")

    found = only_finding(result)
    assert (found.judge, found.subject) == ("samples", "DistributedSampler")
    assert found.problem == "epoch 1 has the same order of samples as epoch 0, although shuffle is on"
    assert found.where == line_of(train, "for (batch,) in made")
    assert found.notes == ("set_epoch was not called",)


def test_a_loop_that_only_evaluates_may_have_the_same_order() -> None:
    assert run(partial(train, loader=shared, sets_epoch=False, steps=False), "samples").ok


def test_a_loader_without_a_distributed_sampler_under_ddp_is_found() -> None:
    def whole(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(dataset, batch_size=4)

    found = only_finding(run(partial(train, loader=whole), "samples"))

    assert found.problem == "all 3 ranks read the same samples in the same order in epoch 0"
    assert found.rank == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_model_without_ddp_may_read_all_samples_beside_one_with(kept: bool) -> None:
    models = []

    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for (batch,) in shared(data(), rank):
            model(batch).sum().backward()
            optimizer.step()
        if kept:
            models.append(model)
        del model, optimizer
        alone(rank, loader=lambda dataset, _: DataLoader(dataset, batch_size=4))

    assert run(body, "samples").ok


def test_an_optimizer_of_copied_parameters_counts_as_one_of_ddp() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        copies = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=1e-6)
        for (batch,) in DataLoader(data(), batch_size=4):
            model(batch).sum().backward()
            for copy, each in zip(copies, model.parameters(), strict=True):
                copy.grad, each.grad = each.grad, None
            optimizer.step()

    finding = only_finding(run(body, "samples"))

    assert finding.problem == "all 3 ranks read the same samples in the same order in epoch 0"


def test_samplers_that_all_take_the_first_share_are_found() -> None:
    first = partial(shared, num_replicas=3, rank=0)

    found = only_finding(run(partial(train, loader=first), "samples"))

    assert found.rank == 1
    assert found.problem.startswith("the ranks read 1 share of 3 in epoch 0: samples ")


def test_samplers_that_all_take_one_share_of_augmented_data_are_found() -> None:
    def augmented(dataset: TensorDataset, rank: int) -> Any:
        noisy = TensorDataset(dataset.tensors[0] + rank)
        return shared(noisy, rank, num_replicas=3, rank=0)

    found = only_finding(run(partial(train, loader=augmented), "samples"))

    assert found.problem.startswith("the ranks read 1 share of 3 in epoch 0")


class Noisy(Dataset[tuple[torch.Tensor]]):
    """Adds the rank's own noise to samples; `extra` is another object that it keeps."""

    def __init__(self, samples: torch.Tensor, rank: int, extra: object = None) -> None:
        self.samples = samples
        self.generator = torch.Generator().manual_seed(rank)
        self.transform: Callable[[torch.Tensor], torch.Tensor] = lambda sample: (
            sample + torch.rand(4, generator=self.generator)
        )
        self.extra = extra

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self.transform(self.samples[index]),)


def test_augmented_data_without_a_distributed_sampler_are_found() -> None:
    def whole(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Noisy(dataset.tensors[0], rank), batch_size=4)

    found = only_finding(run(partial(train, loader=whole), "samples"))

    assert found.problem == "all 3 ranks read the same samples in the same order in epoch 0"
    assert found.notes == ("DDP averages gradients of equal samples then; the loader needs a DistributedSampler",)


def test_augmented_data_of_the_ranks_own_may_have_the_same_indices() -> None:
    def own(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Noisy(dataset.tensors[0] + rank, rank), batch_size=4)

    assert run(partial(train, loader=own), "samples").ok


def test_data_that_may_be_hidden_in_a_strange_object_are_left_alone() -> None:
    def hidden(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Noisy(dataset.tensors[0], rank, extra=object()), batch_size=4)

    assert run(partial(train, loader=hidden), "samples").ok


def test_a_sampler_of_ones_own_may_repeat_augmented_samples() -> None:
    class Same(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(SIZE))

    def repeated(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Noisy(dataset.tensors[0], rank), batch_size=4, sampler=Same())

    assert run(partial(train, loader=repeated), "samples").ok


def test_samplers_for_more_ranks_than_there_are_leave_shares_unread() -> None:
    def larger(dataset: TensorDataset, rank: int) -> Any:
        return shared(dataset, rank, num_replicas=6)

    found = only_finding(run(partial(train, loader=larger), "samples"))

    assert found.problem.startswith("the ranks read 3 shares of 6 in epoch 0: samples ")


def test_ranks_with_data_sets_of_their_own_may_have_the_same_indices() -> None:
    def own(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Subset(dataset, range(rank, 48, 3)), batch_size=4)

    assert run(partial(train, loader=own), "samples").ok


def test_samplers_with_other_seeds_overlap() -> None:
    def seeded(dataset: TensorDataset, rank: int) -> Any:
        return shared(dataset, rank, seed=rank)

    found = only_finding(run(partial(train, loader=seeded), "samples"))

    assert found.rank in (1, 2)
    assert found.problem.startswith("in epoch 0 sample 0 is read by ranks ") or "sample" in found.problem
    assert "samples are read more than once" in found.notes[0]


class Blocks(Sampler[int]):
    """A share of the samples as a block, with `overlap` samples too many at its begin."""

    def __init__(self, rank: int, overlap: int = 0) -> None:
        self.begin, self.end = max(0, rank * 16 - overlap), min(SIZE, (rank + 1) * 16)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.begin, self.end))


@pytest.mark.parametrize(("overlap", "ok"), [(0, True), (3, False)])
def test_samplers_of_the_users_own_are_compared(overlap: int, ok: bool) -> None:
    def blocks(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(dataset, batch_size=4, sampler=Blocks(rank, overlap))

    assert run(partial(alone, loader=blocks), "samples").ok is ok


@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_that_split_one_data_set_differently_are_found(shuffle: bool) -> None:
    def loader(dataset: TensorDataset, rank: int, *, seed: int) -> Any:
        part, _ = random_split(dataset, [36, 14], generator=torch.Generator().manual_seed(seed))
        return DataLoader(part, batch_size=4, sampler=DistributedSampler(part, shuffle=shuffle))

    result = run(partial(train, loader=lambda dataset, rank: loader(dataset, rank, seed=rank), epochs=1), "samples")

    found = only_finding(result)
    assert "is read by ranks" in found.problem
    assert "of 36 samples are read more than once" in found.notes[0]
    assert run(partial(train, loader=partial(loader, seed=3), epochs=1), "samples").ok


def test_ranks_of_a_tensor_parallel_group_read_the_same() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        sampler: DistributedSampler[Any] = DistributedSampler(data(), num_replicas=2, rank=rank // 2)
        for (batch,) in DataLoader(data(), batch_size=4, sampler=sampler):
            weight.grad = batch[0]
            optimizer.step()

    assert run(body, "samples", world_size=4).ok


def test_epochs_that_end_early_are_not_compared() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for index, (batch,) in enumerate(shared(data(), rank, shuffle=False)):
            weight.grad = batch[0]
            optimizer.step()
            if index == rank:
                break

    assert run(body, "samples").ok


def test_workers_draw_what_the_rank_reads() -> None:
    def working(dataset: TensorDataset, rank: int) -> Any:
        sampler: DistributedSampler[Any] = DistributedSampler(dataset)
        return DataLoader(
            dataset, batch_size=2, sampler=sampler, num_workers=1, persistent_workers=True, prefetch_factor=1
        )

    result = run(partial(train, loader=working, sets_epoch=False), "samples", world_size=2)

    assert only_finding(result).notes == ("set_epoch was not called",)


@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_that_each_shuffle_the_whole_data_set_under_ddp_are_found(drop_last: bool) -> None:
    def whole(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(dataset, batch_size=8, shuffle=True, drop_last=drop_last)

    found = only_finding(run(partial(train, loader=whole), "samples"))

    assert found.problem == "all 3 ranks read all 50 samples of the data set, in 3 orders, in epoch 0"
    assert found.notes == ("an epoch has each sample 3 times then; the loader needs a DistributedSampler",)


STOOD_FOR = (
    *("_dataset_kind", "_IterableDataset_len_called", "_auto_collation", "drop_last", "_index_sampler", "generator"),
    *("num_workers", "worker_init_fn", "pin_memory", "pin_memory_device", "timeout", "collate_fn"),
    *("persistent_workers", "prefetch_factor", "multiprocessing_context"),
)


def test_an_object_that_stands_in_for_a_loader_is_left_alone() -> None:
    """As in fastai, whose own loader gives torch's iterator the few attributes that this reads."""
    samples = TensorDataset(torch.arange(12.0))

    def body(rank: int) -> None:
        usual: Any = DataLoader(samples, batch_size=4)
        stand_in: Any = SimpleNamespace(dataset=samples, **{name: getattr(usual, name) for name in STOOD_FOR})
        assert len(list(_SingleProcessDataLoaderIter(stand_in))) == 3

    assert run(body).ok


def test_ranks_may_shuffle_data_sets_of_their_own() -> None:
    def own(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(TensorDataset(dataset.tensors[0] + rank), batch_size=5, shuffle=True)

    def part(dataset: TensorDataset, rank: int) -> Any:
        return DataLoader(Subset(dataset, range(rank, 48, 3)), batch_size=4, shuffle=True)

    assert run(partial(train, loader=own), "samples").ok
    assert run(partial(train, loader=part), "samples").ok


class Drawn(Dataset[tuple[torch.Tensor]]):
    """Draws each sample from the generator of the rank, whatever its index is."""

    def __init__(self, varies: bool = True) -> None:
        self.varies = varies

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.randn(4) if self.varies else torch.ones(4),)


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}])
def test_samples_that_all_ranks_draw_alike_are_found(settings: dict[str, Any]) -> None:
    def drawn(_: TensorDataset, rank: int) -> Any:
        torch.manual_seed(7)
        return DataLoader(Drawn(), batch_size=4, sampler=DistributedSampler(Drawn()), **settings)

    found = only_finding(run(partial(train, loader=drawn)))

    assert (found.rank, found.where) == (1, line_of(train, "for (batch,) in made"))
    assert found.problem == "all 3 ranks read equal batches in epoch 0, though their indices are different"


def test_samples_that_each_rank_draws_for_itself_are_left_alone() -> None:
    def drawn(_: TensorDataset, rank: int) -> Any:
        return DataLoader(Drawn(), batch_size=4, sampler=DistributedSampler(Drawn()))

    assert run(partial(train, loader=drawn)).ok


@pytest.mark.parametrize("size", [4, 7])  # the last of two or more batches is shorter
def test_samples_that_are_all_equal_are_left_alone(size: int) -> None:
    def equal(_: TensorDataset, rank: int) -> Any:
        return DataLoader(Drawn(varies=False), batch_size=size, sampler=DistributedSampler(Drawn()))

    assert run(partial(train, loader=equal)).ok


def test_ranks_that_train_alone_may_draw_the_same() -> None:
    def drawn(_: TensorDataset, rank: int) -> Any:
        torch.manual_seed(7)
        return DataLoader(Drawn(), batch_size=4, sampler=DistributedSampler(Drawn()))

    assert run(partial(alone, loader=drawn)).ok
