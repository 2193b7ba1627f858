"""Workers of a loader that draw the same random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

from tests.judges.programs import line_of, net, only_finding, run

SIZE = 36


class Noise:
    """A transform with a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        generator = self.generator
        if isinstance(generator, torch.Generator):
            return sample + torch.randn((), generator=generator)
        return sample + float(generator.random())


class Noisy(Dataset[torch.Tensor]):
    def __init__(self, *transforms: Callable[[torch.Tensor], torch.Tensor], reseeds: bool = False) -> None:
        self.samples = torch.arange(SIZE * 4.0).reshape(SIZE, 4)
        self.transforms = [*transforms]
        self.reseeds = reseeds
        self.order: list[int] = []

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = self.samples[index]
        for transform in self.transforms:
            if self.reseeds:
                transform.generator.seed(index)  # type: ignore[attr-defined]  # of a Noise
            sample = transform(sample)
        return sample


def train(rank: int, *, dataset: Callable[[], Any], steps: bool = True, epochs: int = 2, **settings: Any) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    made = dataset()
    sampler: Any = None if isinstance(made, IterableDataset) else DistributedSampler(made)
    loader = DataLoader(made, batch_size=2, sampler=sampler, **{"num_workers": 2, **settings})
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch).sum()
            if steps:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(
    "make", [lambda: np.random.default_rng(0), lambda: np.random.RandomState(0), random.Random, torch.Generator]
)
@pytest.mark.parametrize("settings", [{}, {"persistent_workers": True}, {"num_workers": 3}])
def test_a_generator_that_each_worker_has_a_copy_of_is_found(make: Callable[[], Any], settings: dict[str, Any]) -> None:
    found = only_finding(run(partial(train, dataset=lambda: Noisy(Noise(make())), **settings)))

    workers = settings.get("num_workers", 2)
    assert (found.judge, found.rank, found.subject) == ("samples", 0, "Noisy")
    assert found.where == line_of(train, "for batch in loader")
    assert found.problem == (
        f"all {workers} workers of a loader draw the same random numbers from Noisy.transforms[0].generator"
    )


class Random(Noise):
    """Draws from one of the generators that a process has."""

    def __init__(self, name: str) -> None:
        super().__init__(None)
        self.name = name

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        draw: dict[str, Callable[[], Any]] = {
            "random": random.random,
            "numpy.random": np.random.normal,
            "torch": lambda: torch.rand(()).item(),
        }
        return sample + float(draw[self.name]())


def seed_all_with(seed: Callable[[int], int], worker: int) -> None:
    random.seed(seed(worker))
    np.random.seed(seed(worker))
    torch.manual_seed(seed(worker))


@pytest.mark.parametrize("name", ["random", "numpy.random", "torch"])
def test_workers_that_are_seeded_alike_are_found(name: str) -> None:
    seed = partial(seed_all_with, lambda worker: 0)
    found = only_finding(run(partial(train, dataset=lambda: Noisy(Random(name)), worker_init_fn=seed)))

    assert found.problem == f"all 2 workers of a loader draw the same random numbers from {name}"


class Ordered(Noisy):
    """Shuffles its samples at the first one, in the same order on all workers."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.order:
            self.order = random.Random(0).sample(range(SIZE), SIZE)
            np.random.shuffle(self.order)
        return super().__getitem__(self.order[index])


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        samples = torch.randn(SIZE, 4)
        for sample in samples[info.id :: info.num_workers]:
            yield sample + float(np.random.normal())


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        (Noisy, {}),
        (lambda: Noisy(Random("numpy.random"), Random("random"), Random("torch")), {}),
        (
            lambda: Noisy(Random("numpy.random"), Random("random"), Random("torch")),
            {"worker_init_fn": partial(seed_all_with, lambda worker: worker)},
        ),
        (lambda: Noisy(Noise(random.Random(0)), reseeds=True), {}),
        (lambda: Noisy(Noise(np.random.default_rng(0))), {"num_workers": 1}),
        (lambda: Noisy(Noise(np.random.default_rng(0))), {"num_workers": 0}),
        (Ordered, {"worker_init_fn": partial(seed_all_with, lambda worker: 0)}),
        (Stream, {"worker_init_fn": partial(seed_all_with, lambda worker: 0)}),
        (lambda: Noisy(Noise(np.random.default_rng(0))), {"steps": False}),
    ],
)
def test_workers_that_need_not_differ_are_left_alone(dataset: Callable[[], Any], settings: dict[str, Any]) -> None:
    found = run(partial(train, dataset=dataset, **settings)).findings

    assert not [each for each in found if "workers" in each.problem]


def test_a_worker_draws_the_same_with_and_without_judges() -> None:
    program = partial(train, dataset=lambda: Noisy(Random("numpy.random"), Random("random"), Random("torch")))

    assert run(program).digest == run(program, "finite").digest
