"""Each rank has its own tensors, modules and optimizers, where processes would have theirs."""

from __future__ import annotations

import copy
import functools
import random
import threading
import unittest.mock
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import simdist
from simdist.errors import SimdistError
from simdist.testing import Sim


class Pair(NamedTuple):
    model: nn.Module
    lock: threading.Lock
    both: dict[str, object]


def _model() -> nn.Linear:
    model = nn.Linear(2, 1)
    nn.init.ones_(model.weight)
    return model


def _trained(model: nn.Linear, optimizer: torch.optim.Optimizer, seen: list[int]) -> list[float]:
    """Take a step with a gradient that depends on the rank; return the weights."""
    rank = dist.get_rank()
    seen.append(rank)
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    optimizer.step()
    weights: list[float] = model.weight.flatten().tolist()
    return weights


@pytest.mark.parametrize("isolate", [False, True])
def test_ranks_have_copies_of_a_model_and_of_its_optimizer(isolate: bool) -> None:
    model, seen = _model(), list[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def body(model: nn.Linear, seen: list[int], *, held: dict[str, torch.optim.Optimizer]) -> list[float]:
        dist.init_process_group("gloo")
        return _trained(model, held["optimizer"], seen)

    for _ in range(2):  # the second run begins with the same model
        result = simdist.run(
            body, world_size=2, args=(model, seen), kwargs={"held": {"optimizer": optimizer}}, isolate=isolate
        )

        assert result.values == [[0.5, 0.5], [0.0, 0.0]]
    assert seen == [0, 1, 0, 1]  # a list is one for all
    assert model.weight.tolist() == [[1.0, 1.0]]


def test_other_objects_beside_a_model_are_one_for_all_ranks() -> None:
    lock, results, model = threading.Lock(), list[torch.Tensor](), _model()

    def body(pair: Pair, tensors: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
        assert pair.model is not model
        assert pair.both["model"] is pair.model
        assert pair.both["results"] is results  # though the other rank's tensor is in it by now
        assert tensors[1:] == [pair.model.weight, pair.model.weight]
        results.append(torch.ones(1))
        return pair.lock is lock

    given = Pair(model, lock, {"model": model, "results": results})
    result = simdist.run(body, world_size=2, args=(given, [torch.ones(1), model.weight, model.weight], results))

    result.raise_for_failure()
    assert result.values == [True, True]
    assert len(results) == 2


@pytest.mark.parametrize(
    "make",
    [torch.Generator, np.random.default_rng, np.random.RandomState, random.Random],
    ids=lambda make: make.__name__,
)
def test_ranks_have_their_own_generators_and_arrays(make: Callable[[], Any]) -> None:
    generator, array = make(), np.arange(100)

    def body(generator: Any, array: np.ndarray[Any, Any]) -> list[Any]:
        array[0] += 1
        if isinstance(generator, torch.Generator):
            return [torch.rand(1, generator=generator).item(), array[0]]
        generator.shuffle(array)
        return list(array)

    result = simdist.run(body, world_size=2, args=(generator, array))

    result.raise_for_failure()
    assert result.values[0] == result.values[1]
    assert array.tolist() == list(range(100))


def test_ranks_have_their_own_data_loaders_of_one_dataset() -> None:
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(1))

    def body(loader: DataLoader[Any]) -> tuple[list[int], bool]:
        return [int(each) for (each,) in loader], loader.dataset is data

    result = simdist.run(body, world_size=2, args=(loader,))

    result.raise_for_failure()
    assert result.values[0] == result.values[1]
    assert result.values[0][1]
    assert result.values[0][0] == [int(each) for (each,) in loader]  # the host's is where it was


def test_a_mock_of_a_model_is_one_for_all() -> None:
    model = unittest.mock.MagicMock(spec=nn.Linear)

    assert simdist.run(lambda model: model(1) is not None, world_size=2, args=(model,)).ok
    assert model.call_count == 2


def test_a_long_list_of_samples_is_one_for_all() -> None:
    samples = [torch.ones(1)] * 1_001

    def body(few: list[torch.Tensor], all_of_them: list[torch.Tensor]) -> tuple[bool, bool]:
        return few[0] is samples[0], all_of_them is samples

    assert simdist.run(body, world_size=2, args=(samples[:1_000], samples)).values == [(False, True)] * 2


def test_a_generator_without_state_is_one_for_all() -> None:
    assert simdist.run(lambda source: source.random() < 1, world_size=2, args=(random.SystemRandom(),)).ok


def test_a_world_that_a_test_drives_copies_them_too(sim: Sim) -> None:
    model = _model()

    def body(model: nn.Linear) -> list[float]:
        dist.init_process_group("gloo")
        return _trained(model, torch.optim.SGD(model.parameters(), lr=0.5), [])

    assert sim.run(body, args=(model,), world_size=2).values == [[0.5, 0.5], [0.0, 0.0]]
    assert sim.run(body, kwargs={"model": model}, world_size=2).values == [[0.5, 0.5], [0.0, 0.0]]
    assert sim.run(functools.partial(body, model), world_size=2).values == [[0.5, 0.5], [0.0, 0.0]]


def test_what_cant_be_copied_is_refused_by_name() -> None:
    tensor = torch.ones(1, requires_grad=True) * 2

    result = simdist.run(lambda tensors: None, world_size=2, args=([tensor],))

    for rank in result.ranks:
        assert isinstance(rank.exception, SimdistError)
        assert str(rank.exception).startswith("each rank needs its own copy of args[0], which can't be made: Only")


def _hogwild(rank: int, model: nn.Linear, counts: torch.Tensor, seen: list[int]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    optimizer.step()
    counts[rank] += rank
    seen.append(rank)


def _in_layers(model: nn.Module) -> nn.Module:
    return nn.ModuleDict({"inner": model})


@pytest.mark.parametrize("wrap", [copy.copy, nn.Sequential, _in_layers])
def test_spawned_processes_have_their_own_modules_over_one_memory(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, counts, seen = _model(), torch.zeros(3), list[int]()
    whole = wrap(model)

    def body(rank: int, whole: nn.Module, counts: torch.Tensor, seen: list[int]) -> None:
        inner = next(each for each in whole.modules() if isinstance(each, nn.Linear))
        _hogwild(rank, inner, counts, seen)

    simdist.spawn(body, args=(whole, counts, seen), nprocs=3)

    assert model.weight.tolist() == [[0.25, 0.25]]
    assert model.weight.grad is None
    assert (counts.tolist(), seen) == ([0, 1, 2], [0, 1, 2])


def test_a_spawned_process_has_a_lazy_module_of_its_own() -> None:
    lazy, shapes = nn.LazyLinear(2), list[Any]()

    def body(rank: int, module: nn.LazyLinear, shapes: list[Any]) -> None:
        module(torch.ones(1, rank + 3))
        shapes.append(list(module.weight.shape))

    simdist.spawn(body, args=(lazy, shapes), nprocs=2)

    assert shapes == [[2, 3], [2, 4]]
    assert isinstance(lazy.weight, nn.UninitializedParameter)


def test_a_model_that_two_ranks_train_is_refused() -> None:
    model = _model()

    def body() -> None:
        dist.init_process_group("gloo")
        torch.optim.SGD(model.parameters(), lr=0.5)
        torch.optim.Adam([{"params": model.bias}])  # a second optimizer of the same rank

    result = simdist.run(body, world_size=2)

    assert result.ranks[0].status == "returned"
    assert isinstance(result.ranks[1].exception, SimdistError)
    assert str(result.ranks[1].exception).startswith(
        "rank 1 optimizes the same parameter as rank 0, of shape [1, 2]; ranks share what a function closes over"
    )
    assert simdist.run(body, world_size=1).ok  # in the next world they are nobody's


def test_each_rank_may_train_its_own_model_of_the_same_name() -> None:
    def body() -> list[float]:
        dist.init_process_group("gloo")
        return _trained(model := _model(), torch.optim.SGD(model.parameters(), lr=0.5), [])

    assert simdist.run(body, world_size=2).values == [[0.5, 0.5], [0.0, 0.0]]
