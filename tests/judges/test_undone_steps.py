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


def train_in_copies(rank: int, *, source: Source, empty: bool = False, average: bool = False) -> None:
    """Train four steps; share `i` of the parameters is stepped on rank `i`, and sent to all in a copy."""
    model = net()
    parameters = [*model.parameters()]
    shares = [parameters[:2], parameters[2:]]
    optimizer = torch.optim.SGD(shares[rank], lr=0.1)
    for step in range(4):
        model.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        for parameter in parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        for index, share in enumerate(shares):
            flat = torch.cat([parameter.detach().view(-1) for parameter in share])
            if empty and rank != source(step, index):
                flat = torch.empty_like(flat)
            if average:
                flat.mul_(0.5)
            dist.broadcast(flat, source(step, index))  # a copy
            with torch.no_grad():
                for parameter in share:
                    parameter.copy_(flat[: parameter.numel()].view_as(parameter))
                    flat = flat[parameter.numel() :]


@pytest.mark.parametrize("empty", [True, False])
def test_a_broadcast_of_a_copy_from_another_rank_is_found(empty: bool) -> None:
    spoilt = partial(train_in_copies, source=lambda step, index: 0, empty=empty)

    finding = only_finding(run(spoilt, "replicas", world_size=2))

    assert finding.problem == (
        "optimizer step 1 of 2.weight is undone: the broadcast of a copy from rank 0 has the value from before the step"
    )
    assert finding.notes == ("rank 0 does not train it: broadcast it from rank 1, which does",)
    assert (finding.rank, finding.step, finding.subject) == (1, 1, "2.weight")
    assert finding.where == line_of(train_in_copies, "# a copy")


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_copies_from_the_rank_that_stepped_are_not_reported(empty: bool, average: bool) -> None:
    right = partial(train_in_copies, source=lambda step, index: index, empty=empty, average=average)

    assert not run(right, "replicas", world_size=2).findings


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("everywhere", [True, False])
def test_steps_that_a_program_takes_back_on_purpose_are_not_reported(flat: bool, everywhere: bool) -> None:
    def careful(rank: int) -> None:
        model = net()
        parameters = [*model.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for step in range(5):
            model.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            kept = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
            with torch.no_grad():
                for parameter, old in zip(parameters, kept, strict=True):
                    if step % 2 and (everywhere or rank == 0):
                        parameter.copy_(old)
                if flat:
                    buffer = torch.cat([parameter.view(-1) for parameter in parameters])
                    dist.broadcast(buffer, 0)
                    for parameter in parameters:
                        parameter.copy_(buffer[: parameter.numel()].view_as(parameter))
                        buffer = buffer[parameter.numel() :]
                else:
                    for parameter in parameters:
                        dist.broadcast(parameter, 0)

    assert not run(careful, "replicas").findings


def test_an_old_value_of_another_origin_is_not_reported() -> None:
    def looks_ahead(rank: int) -> None:
        model = net()
        parameters = [*model.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            kept = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
            dist.broadcast(torch.cat([parameter.detach().view(-1) for parameter in parameters]), 0)  # to compare
            with torch.no_grad():
                for parameter, old in zip(parameters, kept, strict=True):
                    parameter.copy_(old)

    assert not run(looks_ahead, "replicas").findings
