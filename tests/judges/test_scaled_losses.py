"""Losses that are summed over the ranks and divided by their number, before DDP averages their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

from tests.judges.programs import line_of, net, only_finding, run

Reduces: TypeAlias = Callable[[Any], Any]


def train(rank: int, *, reduces: Reduces, ddp: bool = True, passes: int = 1, hooked: bool = False) -> None:
    model: Any = DistributedDataParallel(net()) if ddp else net()
    if hooked:
        model.register_comm_hook(None, noop_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = reduces(model(torch.randn(3, 4)).square().mean())
            loss.backward()
        for parameter in [] if ddp and not hooked else model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def in_place(loss: Any) -> Any:
    dist.all_reduce(loss)
    return loss.div_(3)


def anew(loss: Any) -> Any:
    dist.all_reduce(loss)
    return 1.5 * (loss / 3)


def multiplied(loss: Any) -> Any:
    dist.all_reduce(loss)
    return loss * (1 / 3)


def on_rank_0(loss: Any) -> Any:
    loss = loss.unsqueeze(0)
    dist.reduce(loss, 0)
    loss = loss / 3
    dist.broadcast(loss, 0)
    return loss


@pytest.mark.parametrize("reduces", [in_place, anew, multiplied, on_rank_0])
def test_a_loss_that_is_summed_and_divided_before_ddp_is_found(reduces: Reduces) -> None:
    finding = only_finding(run(partial(train, reduces=reduces)))

    name = "reduce" if reduces is on_rank_0 else "all_reduce"
    line = line_of(reduces, "dist.reduce(" if reduces is on_rank_0 else "dist.all_reduce(")
    assert (finding.judge, finding.rank, finding.step, finding.subject) == ("collectives", 0, 0, "loss")
    assert finding.where == line_of(train, "loss.backward()")
    assert finding.problem.startswith(
        f"the gradients are 3 times too small: the loss is summed by {name} #3 in group '0' ({line}) and divided by 3"
    )


def for_the_log(loss: Any) -> Any:
    total = loss.detach().clone()
    dist.all_reduce(total)
    total.div_(3)
    return loss


def summed(loss: Any) -> Any:
    dist.all_reduce(loss)
    return loss


def restored(loss: Any) -> Any:
    dist.all_reduce(loss)
    return loss / 3 * 3


def divided_before(loss: Any) -> Any:
    loss = loss / 3
    dist.all_reduce(loss)
    return loss


def added(loss: Any) -> Any:
    other = loss * 1
    dist.all_reduce(other)
    return loss + (other.detach() / 3)


def with_gradient(loss: Any) -> Any:
    total = torch.distributed.nn.functional.all_reduce(loss)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return total / 3


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "program",
    [
        partial(train, reduces=for_the_log),
        partial(train, reduces=summed),
        partial(train, reduces=restored),
        partial(train, reduces=divided_before),
        partial(train, reduces=added),
        partial(train, reduces=with_gradient),
        partial(train, reduces=in_place, ddp=False),  # the program sums gradients
        partial(train, reduces=in_place, hooked=True),
        partial(train, reduces=in_place, passes=3),  # three micro batches
    ],
)
def test_other_losses_and_gradients_are_left_alone(program: Callable[[int], None]) -> None:
    assert run(program, "collectives").findings == ()


def test_a_loss_that_ddp_does_not_average_over_these_ranks_is_left_alone() -> None:
    def body(rank: int) -> None:
        pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        model = DistributedDataParallel(net(), process_group=pair)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss: Any = model(torch.randn(3, 4)).square().mean()
        dist.all_reduce(loss)
        (loss / 4).backward()
        optimizer.step()

    assert run(body, "collectives", world_size=4).findings == ()
