"""Parameters that are trained without an optimizer, or besides it, are compared before each backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from simdist.judges.replicas._leaves import leaves_of
from tests.judges.programs import line_of, net, only_finding, run


def reduce(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def descend(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
            parameter.grad = None


def by_hand(rank: int, *, left_out: int = 0) -> None:
    """Change the parameters without an optimizer; the gradients of the last ones are not reduced."""
    model = net()
    parameters = list(model.parameters())
    for _ in range(4):
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        reduce(parameters[: len(parameters) - left_out])
        descend(parameters)


def in_shares(rank: int, *, sent: int = 4) -> None:
    """Give each rank's optimizer a share of the parameters, which the rank sends to the others."""
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters[rank :: dist.get_world_size()], lr=0.1)
    for _ in range(4):
        model.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        reduce(parameters)
        optimizer.step()
        for index, parameter in enumerate(parameters[:sent]):
            dist.broadcast(parameter.detach(), index % dist.get_world_size())


def with_masters(rank: int, *, spoiled: bool = False) -> None:
    """Train copies with more bits; one rank copies one back that differs from those of the others."""
    model = DistributedDataParallel(net())
    parameters = list(model.parameters())
    masters = [nn.Parameter(parameter.detach().double()) for parameter in parameters]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    for _ in range(4):
        model.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        for master, parameter in zip(masters, parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.double()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master + 1e-3 if spoiled and rank == 2 else master)


@pytest.mark.parametrize("body", [by_hand, in_shares, with_masters])
def test_replicas_that_no_optimizer_has_alone_are_equal(body: object) -> None:
    assert callable(body)
    assert run(body).ok


def test_a_gradient_that_is_not_reduced_by_hand_is_found() -> None:
    found = only_finding(run(partial(by_hand, left_out=1)))

    assert (found.judge, found.rank, found.step) == ("replicas", 1, 0)
    assert found.problem == "parameter 2.bias differs on every rank before backward pass 1"
    assert found.where == line_of(by_hand, "loss.backward()")


def test_a_share_that_its_owner_does_not_send_is_found() -> None:
    found = only_finding(run(partial(in_shares, sent=3)))

    assert (found.judge, found.rank, found.subject) == ("replicas", 0, "2.bias")


def in_shares_of_their_own(rank: int, *, reduces: bool = True, sends: bool = False, passes: int = 1) -> None:
    """Each rank steps a share of the parameters; the flags say whether gradients are reduced, and results sent."""
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters[rank::3], lr=0.1)
    for _ in range(3):
        model.zero_grad()
        for _ in range(passes):
            loss = model(torch.randn(3, 4)).square().sum()
            loss.backward()
        for parameter in parameters if reduces else []:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        for index, parameter in enumerate(parameters if sends else []):
            dist.broadcast(parameter.detach(), index % 3)
    dist.barrier()


@pytest.mark.parametrize("passes", [1, 3])
def test_shares_that_no_owner_sends_are_found(passes: int) -> None:
    found = only_finding(run(partial(in_shares_of_their_own, passes=passes)))

    assert (found.judge, found.rank, found.where) == ("replicas", 0, line_of(in_shares_of_their_own, "loss.backward()"))
    assert found.problem.startswith("parameter 2.bias differs from ranks 1, 2 before backward pass ")
    assert found.notes[-1] == "an optimizer of rank 0 steps it, and none of ranks 1, 2: is it sent there?"


@pytest.mark.parametrize("settings", [{"sends": True}, {"reduces": False}])
def test_shares_that_are_sent_or_belong_to_one_rank_are_left_alone(settings: dict[str, bool]) -> None:
    assert run(partial(in_shares_of_their_own, **settings)).ok


def test_parameters_of_ddp_that_are_no_optimizers_are_found() -> None:
    found = only_finding(run(partial(with_masters, spoiled=True)))

    assert (found.judge, found.rank) == ("replicas", 2)
    assert "differs from ranks 0, 1 before backward pass 1" in found.problem


def test_tensors_that_begin_apart_and_share_their_gradients_are_found() -> None:
    def body(rank: int) -> None:
        weight = torch.randn(4, 2, requires_grad=True)
        for _ in range(3):
            torch.autograd.backward((torch.randn(3, 4) @ weight).square().sum())
            assert weight.grad is not None
            dist.all_reduce(weight.grad)
            with torch.no_grad():
                weight -= 0.1 * weight.grad
                weight.grad.zero_()

    found = only_finding(run(body))

    assert found.problem == "parameter weight differs on every rank before backward pass 0"
    assert found.notes[0] == "their gradients are reduced together"


def test_ranks_that_average_by_hand_now_and_then_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = net()
        parameters = list(model.parameters())
        for step in range(7):
            model(torch.randn(3, 4)).square().sum().backward()
            descend(parameters)
            for parameter in parameters if step % 3 == 2 else ():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()

    assert run(body).ok


def test_shards_with_equal_gradients_are_left_alone() -> None:
    def body(rank: int) -> None:
        weight = nn.Parameter(torch.randn(4, 2))
        given = torch.arange(12.0).reshape(3, 4)
        for _ in range(3):
            loss = (given @ weight).sum()
            torch.autograd.backward(loss)
            dist.all_reduce(loss.detach())
            descend([weight])

    assert run(body).ok


def test_inputs_that_need_gradients_are_left_alone() -> None:
    def body(rank: int) -> None:
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = torch.zeros(3, 4, requires_grad=True)
        for _ in range(4):
            with torch.no_grad():
                given.copy_(torch.randn(3, 4))
            optimizer.zero_grad()
            model(given).square().sum().backward()
            optimizer.step()

    assert run(body).ok


def test_leaves_are_in_the_order_of_the_graph() -> None:
    first, second = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    assert [id(leaf) for leaf in leaves_of([(first * second + first).sum()])] == [id(first), id(second)]
    assert leaves_of([first.sum().detach()]) == []


class _Doubled(torch.autograd.Function):
    """A node that keeps something else under the name of torch's attribute for the leaf."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.variable = "its own"
        return given * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


def test_passes_may_begin_at_edges_and_go_through_functions_of_the_program() -> None:
    def body(rank: int) -> None:
        double: Any = _Doubled.apply
        weight = torch.ones(3, requires_grad=True)
        for _ in range(2):
            loss = double(weight).sum()
            torch.autograd.backward(get_gradient_edge(loss), torch.ones(()))

    assert run(body).ok


def test_leaves_are_found_from_an_edge() -> None:
    leaf = torch.ones(3, requires_grad=True)

    assert [id(each) for each in leaves_of([], [get_gradient_edge((leaf * 2).sum())])] == [id(leaf)]


def test_leaves_are_found_behind_functions_that_keep_a_name() -> None:
    class Named(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
            context.name = "mine"
            return given * 2

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    leaf = torch.ones(3, requires_grad=True)
    apply: Any = Named.apply

    assert [id(each) for each in leaves_of([apply(leaf).sum()])] == [id(leaf)]
