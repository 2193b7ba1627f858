"""An optimizer steps the parameters for which losses have gradients, not those that were replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from tests.judges.programs import line_of, net, only_finding, run

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def train(rank: int, *, made: Callable[[nn.Module], torch.optim.Optimizer], steps: int = 4) -> None:
    """Train a model with the optimizer that `made` returns; it may change the model afterwards."""
    model = net()
    optimizer = made(model)
    for _ in range(steps):

        def loss() -> Any:
            optimizer.zero_grad()
            value = model(torch.randn(3, 4)).square().mean()
            value.backward()
            return value

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch has no annotation
        else:
            loss()
            optimizer.step()


def before_sharding(model: nn.Module) -> SGD:
    optimizer = SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    return optimizer


def of_a_copy(model: nn.Module) -> SGD:
    return SGD(copy.deepcopy(model).parameters(), lr=0.1)


@pytest.mark.parametrize("made", [before_sharding, of_a_copy])
def test_an_optimizer_of_other_parameters_is_found(made: MakeOptimizer) -> None:
    found = only_finding(run(partial(train, made=made), "replicas"))

    assert found.problem == "optimizer step 1 changed nothing: no parameter of the optimizer has a gradient"
    assert (found.rank, found.step, found.subject) == (0, 1, "SGD")
    assert found.where == line_of(train, "            optimizer.step()")
    (note,) = found.notes
    assert note.startswith("the losses have gradients for other parameters: was the optimizer made before fully_shard")


def test_gradients_that_are_cleared_before_the_step_are_found() -> None:
    def clears_late(rank: int) -> None:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.zero_grad()
            optimizer.step()

    found = only_finding(run(clears_late, "replicas"))

    assert found.problem == "optimizer step 1 changed nothing: its parameters have no gradients any more"
    assert found.where == line_of(clears_late, "optimizer.step()")
    (note,) = found.notes
    assert note.endswith("is zero_grad called between the backward pass and the step?")


def after_sharding(model: nn.Module) -> SGD:
    fully_shard(model)
    return SGD(model.parameters(), lr=0.1)


def after_a_step_without_gradients(model: nn.Module) -> SGD:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.step()
    return optimizer


class Masters(SGD):
    """Steps copies, for which it computes the change itself."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.of = list(parameters)
        super().__init__([nn.Parameter(each.detach().clone()) for each in self.of], lr=0.1)

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for mine, given in zip(self.param_groups[0]["params"], self.of, strict=True):
                assert given.grad is not None
                given.copy_(mine.sub_(0.1 * given.grad))


def with_masters(model: nn.Module) -> Masters:
    return Masters(model.parameters())


def of_some_parameters(model: nn.Module) -> SGD:
    *_, last = model.children()
    return SGD(last.parameters(), lr=0.1)


def with_closures(model: nn.Module) -> torch.optim.LBFGS:
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)


@pytest.mark.parametrize(
    "made",
    [after_sharding, after_a_step_without_gradients, with_masters, of_some_parameters, with_closures],
)
def test_optimizers_that_change_something_are_left_alone(made: MakeOptimizer) -> None:
    assert not [each for each in run(partial(train, made=made), "replicas").findings if "nothing" in each.problem]


def test_a_second_optimizer_may_have_nothing_to_do() -> None:
    def both(rank: int) -> None:
        model, later = net(), net(1)
        optimizers = [SGD(later.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)]
        torch.manual_seed(0)
        for _ in range(4):
            model(torch.randn(3, 4)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert run(both, "replicas").ok


def test_an_optimizer_may_step_without_a_backward_pass() -> None:
    def alone(rank: int) -> None:
        optimizer = SGD(net().parameters(), lr=0.1)
        for _ in range(4):
            optimizer.step()

    assert run(alone, "replicas").ok


@pytest.mark.parametrize(("inside", "side"), [(True, "the model's"), (False, "the state dict's")])
def test_a_state_dict_of_which_nothing_is_loaded_is_found(inside: bool, side: str) -> None:
    def resume(rank: int) -> None:
        model, wrapped = net(), DistributedDataParallel(net(1))
        saved, target = (model.state_dict(), wrapped) if inside else (wrapped.state_dict(), model)
        target.load_state_dict(saved, strict=False)

    found = only_finding(run(resume, "replicas"))

    assert found.problem == "load_state_dict loaded nothing: none of the 4 names of the model is in the state dict"
    assert found.where == line_of(resume, "strict=False")
    assert found.notes == (f"{side} names begin with 'module.'",)


def test_names_without_a_common_end_are_shown() -> None:
    def resume(rank: int) -> None:
        nn.Linear(2, 2).load_state_dict({"kernel": torch.ones(2)}, strict=False)

    assert only_finding(run(resume, "replicas")).notes == ("the model has 'weight', the state dict 'kernel'",)


def test_a_state_dict_may_be_empty_or_fit_in_part() -> None:
    def resume(rank: int) -> None:
        model = net()
        model.load_state_dict({}, strict=False)
        model.load_state_dict({"0.weight": torch.ones(8, 4), "other": torch.ones(2)}, strict=False)
        model.load_state_dict(net(1).state_dict())
        nn.ReLU().load_state_dict({"other": torch.ones(2)}, strict=False)

    assert run(resume, "replicas").ok
