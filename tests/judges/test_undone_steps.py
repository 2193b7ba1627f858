"""Optimizer steps of a part of the parameters, which a broadcast from another rank undoes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from tests.judges.programs import line_of, net, only_finding, run

Source = Callable[[int, int], int]


def train(rank: int, *, source: Source, closed: bool = False) -> None:
    """Train four steps; parameter `i` is stepped on rank `i % 3`, and sent to all from rank `source(step, i)`."""
    model = net()
    parameters = [*model.parameters()]
    optimizer = torch.optim.SGD(parameters[rank::3], lr=0.1)

    def compute() -> float:
        model.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        for parameter in parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        return float(loss.item())

    for step in range(4):
        if closed:
            optimizer.step(compute)
        else:
            compute()
            optimizer.step()
        for index, parameter in enumerate(parameters):
            dist.broadcast(parameter.data, source(step, index))


@pytest.mark.parametrize("closed", [True, False])
def test_a_broadcast_from_another_rank_than_the_one_that_stepped_is_found(closed: bool) -> None:
    spoilt = partial(train, source=lambda step, index: 0 if index == 2 else index % 3, closed=closed)

    finding = only_finding(run(spoilt, "replicas"))

    assert finding.problem == (
        "optimizer step 1 of 2.weight is undone: the broadcast from rank 0 has the value from before the step"
    )
    assert finding.notes == ("rank 0 does not train it: broadcast it from rank 2, which does",)
    assert (finding.rank, finding.step, finding.subject) == (2, 1, "2.weight")
    assert finding.where == line_of(train, "dist.broadcast")


def test_it_is_found_where_it_happens_in_one_step() -> None:
    finding = only_finding(run(partial(train, source=lambda step, index: (index + (step == 2)) % 3)))

    assert finding.problem.startswith("optimizer step 2 of 0.bias is undone: the broadcast from rank 2 ")
    assert finding.rank == 1


def test_a_broadcast_from_the_rank_that_stepped_is_not_reported() -> None:
    assert not run(partial(train, source=lambda step, index: index % 3)).findings


def test_a_rank_that_sends_another_step_is_not_reported() -> None:
    def best_of_all(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                dist.broadcast(parameter.data, step % 3)

    assert not run(best_of_all).findings


def test_a_step_that_changes_nothing_is_not_undone() -> None:
    def idle(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                dist.broadcast(parameter.data, 0)

    assert not run(idle).findings
