"""Gradients that one rank keeps for its next step, while the others clear them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simdist
from tests.judges.programs import line_of, net, only_finding, run

Clears = Callable[[int, int], bool]


def train(rank: int, *, clears: Clears, set_to_none: bool = True, ddp: bool = True) -> None:
    """Train four steps; before each, a rank for which `clears(rank, step)` is true clears its gradients."""
    model: nn.Module = DistributedDataParallel(net()) if ddp else net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        if clears(rank, step):
            optimizer.zero_grad(set_to_none)
        model(torch.randn(3, 4)).square().sum().backward()
        for parameter in [] if ddp else model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()


def all_but_rank_1_in_step_2(rank: int, step: int) -> bool:
    return rank != 1 or step != 2


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_rank_that_leaves_zero_grad_out_once_is_found(set_to_none: bool) -> None:
    finding = only_finding(run(partial(train, clears=all_but_rank_1_in_step_2, set_to_none=set_to_none), "replicas"))

    assert finding.problem == "the gradient of 0.weight is kept after optimizer step 1, and cleared on ranks 0, 2"
    assert (finding.rank, finding.step, finding.subject) == (1, 2, "0.weight")
    assert finding.where == finding.against == line_of(train, ".backward()")


def test_it_is_found_where_the_program_averages() -> None:
    finding = only_finding(run(partial(train, clears=lambda rank, step: rank == 0, ddp=False)))

    assert finding.problem == "the gradient of 0.weight is kept after optimizer step 0, and cleared on rank 0"
    assert finding.rank == 1


def test_between_equally_many_the_rank_that_keeps_is_to_blame() -> None:
    finding = only_finding(run(partial(train, clears=lambda rank, step: rank == 1), world_size=2))

    assert (finding.rank, finding.step) == (0, 1)
    assert finding.problem.endswith("is kept after optimizer step 0, and cleared on rank 1")


@pytest.mark.parametrize("clears", [lambda rank, step: True, lambda rank, step: step in (1, 2)])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_that_clear_in_the_same_steps_are_not_reported(clears: Clears, set_to_none: bool) -> None:
    assert not run(partial(train, clears=clears, set_to_none=set_to_none)).findings


@pytest.mark.parametrize("ddp", [True, False])
def test_gradients_that_no_rank_clears_are_found(ddp: bool) -> None:
    finding = only_finding(run(partial(train, clears=lambda rank, step: False, ddp=ddp)))

    assert finding.problem == (
        "the gradient of 0.weight is never cleared: the backward pass after optimizer step 1 adds to it"
    )
    assert (finding.rank, finding.step) == (0, 2)
    assert finding.where == line_of(train, ".backward()")


def test_gradients_that_are_scaled_or_copied_are_not_reported() -> None:
    def scaled(rank: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        masters = [nn.Parameter(each.detach().double()) for each in model.parameters()]
        of_masters = torch.optim.SGD(masters, lr=0.1)
        for _ in range(5):
            model(torch.randn(3, 4)).square().sum().backward()
            for parameter, master in zip(model.parameters(), masters, strict=True):
                assert parameter.grad is not None
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                master.grad.copy_(parameter.grad)
            optimizer.step()
            of_masters.step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 0.9

    assert not [each for each in run(scaled).findings if "cleared" in each.problem]


def test_gradients_that_a_rank_only_looks_at_are_not_reported() -> None:
    def look(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if rank == 0 and step == 2:
                model.module(torch.randn(3, 4)).sum().backward()  # the old gradients are still there
            optimizer.zero_grad()
            for _ in range(2):
                with model.no_sync():
                    model(torch.randn(3, 4)).square().sum().backward()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()

    assert not run(look).findings


@pytest.mark.parametrize("forgets", [True, False])
def test_backward_passes_in_a_closure_belong_to_its_step(forgets: bool) -> None:
    def closed(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):

            def closure(step: int = step) -> float:
                if not forgets or rank != 1 or step != 2:
                    optimizer.zero_grad()
                loss = model(torch.randn(3, 4)).square().sum()
                loss.backward()
                return float(loss.item())

            optimizer.step(closure)

    findings = run(closed, "replicas").findings

    kept = "the gradient of 0.weight is kept after optimizer step 1, and cleared on ranks 0, 2"
    assert [(each.rank, each.problem) for each in findings] == ([(1, kept)] if forgets else [])


def test_ranks_without_replicas_may_differ() -> None:
    def alone(rank: int) -> None:
        model = net(seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            if rank:
                optimizer.zero_grad()
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()

    assert not run(alone).findings


@pytest.mark.parametrize("clears", [None, "zero", "none", "before the step"])
def test_gradients_on_devices_that_no_rank_clears_are_found(clears: str | None) -> None:
    def on_device() -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        model = DistributedDataParallel(net().cuda(), device_ids=[dist.get_rank()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            if clears in ("zero", "none"):
                optimizer.zero_grad(set_to_none=clears == "none")
            loss = model(torch.randn(3, 4, device="cuda")).square().sum()
            if clears == "before the step":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.destroy_process_group()

    result = simdist.run(on_device, world_size=3, backend="nccl", judges=["replicas"])

    problems = [finding.problem for finding in result.findings]
    never = "the gradient of 0.weight is never cleared: the backward pass after optimizer step 1 adds to it"
    assert problems == ([] if clears else [never]), result


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_cleared_after_a_pass_of_another_model_are_left_alone(device: str, set_to_none: bool) -> None:
    def adversaries() -> None:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cuda":
            torch.cuda.set_device(dist.get_rank())
        generator, critic = nn.Linear(4, 4).to(device), net().to(device)
        first, second = (torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, critic))
        for _ in range(4):
            first.zero_grad(set_to_none)
            critic(generator(torch.ones(3, 4, device=device))).square().sum().backward()
            first.step()
            second.zero_grad(set_to_none)
            critic(torch.ones(3, 4, device=device)).square().sum().backward()
            second.step()
        dist.destroy_process_group()

    result = simdist.run(adversaries, world_size=2, backend="nccl" if device == "cuda" else "gloo", judges=True)

    assert not [each for each in result.findings if "cleared" in each.problem]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("forgets", [True, False])
def test_gradients_on_devices_are_looked_at(set_to_none: bool, forgets: bool) -> None:
    def on_device() -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        model = DistributedDataParallel(net().cuda(), device_ids=[dist.get_rank()])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if not forgets or dist.get_rank() != 1 or step != 2:
                optimizer.zero_grad(set_to_none)
            if set_to_none is False:
                torch.cuda.synchronize()
            model(torch.randn(3, 4, device="cuda")).square().sum().backward()
            optimizer.step()
        dist.destroy_process_group()

    result = simdist.run(on_device, world_size=3, backend="nccl", judges=True)

    problems = [finding.problem for finding in result.findings]
    kept = "the gradient of 0.weight is kept after optimizer step 1, and cleared on ranks 0, 2"
    assert problems == ([kept] if forgets else []), result


@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_on_devices_that_are_set_to_zero_are_not_kept(passes: int) -> None:
    """Whether they are zero is known on one rank before it is on another."""

    def body() -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        model = DistributedDataParallel(net().cuda(), device_ids=[dist.get_rank()])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(4):
            for number in range(passes):
                with model.no_sync() if number < passes - 1 else contextlib.nullcontext():
                    model(torch.randn(3, 4, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    result = simdist.run(body, world_size=3, backend="nccl", judges=True)

    assert result.ok
    assert result.findings == ()
