"""Gradients, norms and losses that differ from those on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import simdist
from tests.corpus._entries import entry

STEPS, ROWS = 2, 8
DP, TP = ({"dp": 2},), ({"tp": 2},)


class _Sum(torch.autograd.Function):
    """A sum over ranks; every rank passes its own gradient on."""

    @staticmethod
    def forward(context: Any, part: torch.Tensor) -> torch.Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Copy(torch.autograd.Function):
    """A copy of a tensor that every rank has; its gradient is summed over ranks."""

    @staticmethod
    def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


sum_over_ranks: Any = _Sum.apply
copy_to_ranks: Any = _Copy.apply


def made(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def share(tensor: torch.Tensor, size: int, dimension: int = 0) -> torch.Tensor:
    return tensor.chunk(size, dimension)[dist.get_rank() % size].clone()


def grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def data_parallel(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Train a linear model whose data rows are split among ranks; each of `bugs` is one mistake."""
    size = layout["dp"]
    weight = nn.Parameter(made(3, 4, seed=1))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    losses, gradients = [], []
    for step in range(STEPS):
        rows = share(made(ROWS, 4, seed=10 + step), size)
        valid = share(torch.arange(ROWS) % 3 < torch.tensor([1] * (ROWS // 2) + [3] * (ROWS // 2)), size)
        optimizer.zero_grad()
        errors = (rows @ weight.T).square().mean(1)
        loss: Any
        if "uneven" in bugs:
            count = valid.sum().float()
            if not bugs["uneven"]:
                dist.all_reduce(count)
                count /= size
            loss = (errors * valid).sum() / count
        else:
            loss = errors.mean()
        for _ in range(3 if "doubled" in bugs else 1):
            (loss / (3 if "doubled" in bugs else 1)).backward(retain_graph=True)
            if bugs.get("doubled"):
                dist.all_reduce(grad(weight))
        dist.all_reduce(grad(weight))
        if not bugs.get("summed"):
            weight.grad = grad(weight) / size
        if bugs.get("twice"):
            weight.grad = grad(weight) / size
        reported = loss.detach().clone()
        dist.all_reduce(reported)
        reported /= size
        optimizer.step()
        losses.append(reported.item())
        gradients.append({"weight": grad(weight).clone()})
    return {"loss": losses, "gradient": gradients, "parameters": {"weight": weight.detach()}}


@entry("meta-pytorch/torchft#286", "agree", layouts=DP)
def gradients_are_summed_and_not_averaged(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return data_parallel(layout, summed=buggy)


@entry("NVIDIA/Megatron-LM#6660", "agree", layouts=DP)
def gradients_grow_with_every_micro_batch(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return data_parallel(layout, doubled=buggy)


@entry("meta-pytorch/torchtune#2420", "agree", layouts=DP)
def gradients_are_divided_by_another_size(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return data_parallel(layout, twice=buggy)


@entry("pytorch/torchtitan#2206", "agree", layouts=DP)
def loss_is_the_mean_of_means_of_uneven_ranks(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return data_parallel(layout, uneven=buggy)


def tensor_parallel(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Train a norm, a matrix split by columns and one split by rows."""
    size = layout["tp"]
    norm = nn.Parameter(made(4, seed=1))
    first = nn.Parameter(share(made(6, 4, seed=2), size))
    second = nn.Parameter(share(made(2, 6, seed=3), size, 1))
    optimizer = torch.optim.SGD([norm, first, second], lr=0.05)
    gradients, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        scaled = made(ROWS, 4, seed=20 + step) * norm
        given = scaled if bugs.get("norm") else copy_to_ranks(scaled)
        hidden = torch.relu(given @ first.T)
        sum_over_ranks(hidden @ second.T).square().mean().backward()
        squares = (grad(first).square().sum() + grad(second).square().sum()).clone()
        if not bugs.get("local_norm"):
            dist.all_reduce(squares)
        total = (squares + grad(norm).square().sum() * (size if bugs.get("counted_twice") else 1)).sqrt()
        optimizer.step()
        norms.append(total.item())
        gradients.append({"norm": grad(norm).clone(), "first": grad(first).clone(), "second": grad(second).clone()})
    return {"grad_norm": norms, "gradient": gradients}


@entry("NVIDIA/TransformerEngine#1528", "agree", layouts=TP)
def gradients_of_the_norm_miss_the_sum(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return tensor_parallel(layout, norm=buggy)


@entry("deepspeedai/DeepSpeed#5259", "agree", layouts=TP)
def norm_of_gradients_is_that_of_the_rank(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return tensor_parallel(layout, local_norm=buggy)


@entry("deepspeedai/DeepSpeed#5411", "agree", layouts=TP)
def replicated_gradients_count_twice_in_the_norm(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return tensor_parallel(layout, counted_twice=buggy)
