"""The modules of a model in DDP must be in the same mode on all ranks that run backward together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.judges.programs import line_of, net, only_finding, run


def train(
    rank: int, *, before: Callable[[int, int, nn.Module], None], after: Callable[[int, int, nn.Module], None]
) -> None:
    """Train four steps; `before(rank, step, model)` runs before the forward pass, `after` after the backward pass."""
    model = DistributedDataParallel(nn.Sequential(net(), nn.Dropout(0.5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        before(rank, step, model)
        model(torch.randn(3, 4)).square().sum().backward()
        after(rank, step, model)
        optimizer.step()
        optimizer.zero_grad()


def nothing(rank: int, step: int, model: nn.Module) -> None: ...


def one_stays_in_evaluation(rank: int, step: int, model: nn.Module) -> None:
    if rank == 1 and step == 2:
        model.eval()


def test_a_rank_that_goes_on_in_evaluation_mode_is_found() -> None:
    finding = only_finding(run(partial(train, before=one_stays_in_evaluation, after=nothing), "replicas"))

    assert finding.problem == (
        "the model is in evaluation mode here, and in training mode on ranks 0, 2, "
        "in the backward pass for optimizer step 2"
    )
    assert (finding.rank, finding.step) == (1, 2)
    assert finding.where == line_of(train, ".backward()")


def test_a_module_that_is_frozen_on_one_rank_is_named() -> None:
    def freeze(rank: int, step: int, model: nn.Module) -> None:
        if rank == 2 and step == 1:
            model.get_submodule("module.1").eval()

    finding = only_finding(run(partial(train, before=freeze, after=nothing)))

    assert finding.problem.startswith("module 1 is in evaluation mode here, and in training mode on ranks 0, 1, ")
    assert (finding.subject, finding.rank, finding.step) == ("1", 2, 1)


def test_of_two_ranks_the_later_is_blamed_at_its_own_line() -> None:
    finding = only_finding(run(partial(train, before=one_stays_in_evaluation, after=nothing), world_size=2))

    assert finding.problem.startswith("the model is in evaluation mode here, and in training mode on rank 0, ")
    assert finding.rank == 1


def test_all_ranks_may_train_in_evaluation_mode() -> None:
    def all_evaluate(rank: int, step: int, model: nn.Module) -> None:
        model.train(step == 0)

    assert not run(partial(train, before=all_evaluate, after=nothing)).findings


def test_a_rank_may_evaluate_between_its_backward_passes() -> None:
    def evaluate(rank: int, step: int, model: nn.Module) -> None:
        model.train(rank != 0)

    def back(rank: int, step: int, model: nn.Module) -> None:
        model.train()

    assert not run(partial(train, before=back, after=evaluate)).findings


@pytest.mark.parametrize("judges", [("replicas",), ()])
def test_ranks_of_other_groups_may_have_other_modes(judges: tuple[str, ...]) -> None:
    def body(rank: int) -> None:
        group = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        model = DistributedDataParallel(net(seed=rank // 2), process_group=group)
        model.module.train(rank < 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert not run(body, *judges, world_size=4).findings


@pytest.mark.parametrize("in_training", [(False, True), (True, False)])
def test_of_several_passes_for_a_step_the_last_counts(in_training: tuple[bool, bool]) -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            for training in in_training:
                model.module.train(training or rank != 1 or step != 1)
                model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    findings = run(body, "replicas").findings

    assert [(each.rank, each.step) for each in findings] == ([] if in_training[-1] else [(1, 1)])


def test_a_mode_that_changes_in_the_steps_of_a_later_optimizer_is_found() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        for phase in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                model.module.train(phase < 2 or step < 1 or rank != 1)
                model(torch.randn(3, 4)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    finding = only_finding(run(body, "replicas"))

    assert (finding.rank, finding.step) == (1, 1)


def test_ranks_with_other_optimizers_beside_may_change_the_mode_together() -> None:
    def body(rank: int) -> None:
        model, own = DistributedDataParallel(net()), nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        beside = torch.optim.SGD(own.parameters(), lr=0.1)
        for step in range(4):
            model.module.train(step < 2)
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                own(torch.ones(1)).sum().backward()
                beside.step()

    assert not run(body, "replicas").findings
