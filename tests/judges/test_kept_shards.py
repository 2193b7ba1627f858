"""Gradients of shards that some ranks, or all, keep for the next step."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

import simdist
from tests.judges.programs import line_of, net, only_finding, run
from tests.judges.test_kept_gradients import Clears, all_but_rank_1_in_step_2


def sharded(model: nn.Module) -> FSDPModule:
    fully_shard(model)
    assert isinstance(model, FSDPModule)
    return model


def train(rank: int, *, clears: Clears, set_to_none: bool = True, micro_batches: int = 1, device: str = "cpu") -> None:
    """Train five steps; before each, a rank for which `clears(rank, step)` is true clears its gradients."""
    model = net().to(device)
    shards = sharded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        if clears(rank, step):
            optimizer.zero_grad(set_to_none)
        for number in range(micro_batches):
            shards.set_requires_gradient_sync(number == micro_batches - 1)
            model(torch.randn(3, 4, device=device)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_rank_that_keeps_its_shards_is_found(set_to_none: bool, micro_batches: int) -> None:
    program = partial(train, clears=all_but_rank_1_in_step_2, set_to_none=set_to_none, micro_batches=micro_batches)
    finding = only_finding(run(program, "replicas"))

    assert finding.problem == "the gradient of 0.weight is kept after optimizer step 1, and cleared on ranks 0, 2"
    assert (finding.rank, finding.step, finding.subject) == (1, 2, "0.weight")
    assert finding.where == finding.against == line_of(train, ".backward()")


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shards_that_no_rank_clears_are_found(micro_batches: int) -> None:
    finding = only_finding(run(partial(train, clears=lambda rank, step: False, micro_batches=micro_batches)))

    assert finding.problem == (
        "the gradient of 0.weight is never cleared: the backward pass after optimizer step 1 adds to it"
    )
    assert (finding.rank, finding.step) == (0, 2)


@pytest.mark.parametrize("clears", [True, False])
def test_shards_on_devices_that_no_rank_clears_are_found(clears: bool) -> None:
    def on_device() -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        train(dist.get_rank(), clears=lambda rank, step: clears, device="cuda")
        dist.destroy_process_group()

    result = simdist.run(on_device, world_size=2, backend="nccl", judges=["replicas"])

    assert [finding.step for finding in result.findings] == ([] if clears else [2]), result


@pytest.mark.parametrize("clears", [lambda rank, step: True, lambda rank, step: step in (1, 2)])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ranks_that_clear_shards_alike_are_not_reported(clears: Clears, set_to_none: bool, micro_batches: int) -> None:
    assert not run(partial(train, clears=clears, set_to_none=set_to_none, micro_batches=micro_batches)).findings


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_shard_whose_gradient_is_zero_is_not_cleared(set_to_none: bool) -> None:
    def words(rank: int) -> None:
        model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 3))
        sharded(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            if step in (1, 3):
                optimizer.zero_grad(set_to_none)
            model(torch.tensor([0, 1])).square().sum().backward()  # rows of rank 0 only
            optimizer.step()

    assert not run(words).findings


def test_gradients_between_steps_of_shards_may_be_scaled() -> None:
    def scaled(rank: int) -> None:
        model = net()
        sharded(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 0.9

    assert not run(scaled).findings
