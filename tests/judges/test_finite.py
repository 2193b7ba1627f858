"""The first value that is not finite: the rank that made it is named, not the one that met it first."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.judges.programs import line_of, net, only_finding, run


def divides(rank: int) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        count = 0.0 if (rank, step) == (2, 1) else 3.0
        loss = model(torch.randn(3, 4)).sum() / count
        loss.backward()
        optimizer.step()


def test_the_rank_whose_loss_was_no_number_is_named() -> None:
    found = only_finding(run(divides, "finite"))

    assert (found.judge, found.rank, found.step, found.subject) == ("finite", 2, 1, "0.weight")
    assert found.problem == "gradient of 0.weight is not finite in optimizer step 1"
    assert found.where == line_of(divides, "loss.backward()")
    assert found.against == line_of(divides, "optimizer.step()")
    assert found.notes[0] == f"its loss was not finite at {found.where}"
    assert found.notes[1] == f"it brought a value that was not finite into all_reduce at {found.where}"


def test_a_parameter_that_the_step_made_is_found() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.full((2,), 3e38))
        optimizer = torch.optim.SGD([weight], lr=1e38)
        weight.grad = torch.full((2,), -10.0)
        optimizer.step()

    found = only_finding(run(body, "finite"))

    assert found.problem == "parameter weight is not finite after optimizer step 0"
    assert found.notes == ("its gradients were finite: the step made it",)


def test_a_step_that_is_skipped_because_of_overflow_is_no_finding() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss = (weight * (float("inf") if step == 0 else 1.0)).sum()
            torch.autograd.backward([loss])
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
            if torch.isfinite(weight.grad).all():
                optimizer.step()

    assert run(body, "finite").ok


def test_a_step_after_a_loss_that_is_no_number_is_found_by_the_loss() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        loss = nn.functional.cross_entropy(weight[None], torch.tensor([-100]))  # without a label
        torch.autograd.backward([loss])
        optimizer.step()

    result = run(body, "finite")

    assert only_finding(result).problem == "the loss is not finite, and optimizer step 0 is taken"


def test_types_that_numpy_lacks_are_seen() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.tensor([1.0, float("nan"), 1.0], dtype=torch.bfloat16)
        optimizer.step()

    assert only_finding(run(body, "finite")).subject == "weight"


def test_large_values_are_numbers() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.full((3,), 3e38))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        weight.grad = torch.full((3,), 3e38)
        optimizer.step()

    assert run(body, "finite").ok
