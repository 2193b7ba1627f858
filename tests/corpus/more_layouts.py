"""Tensor, pipeline and context parallel layouts, and metrics, whose results differ from those on one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import simdist
from tests.corpus._entries import entry
from tests.corpus.layouts import DP, STEPS, TP, copy_to_ranks, grad, made, share, sum_over_ranks

PP, CP = ({"pp": 2},), ({"cp": 2},)


def row_parallel(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Train a linear layer split by rows, with a bias."""
    size = layout["tp"]
    weight = nn.Parameter(share(made(3, 4, seed=1), size, 1))
    bias = nn.Parameter(made(3, seed=2))
    losses, gradients = [], []
    for step in range(STEPS):
        weight.grad = bias.grad = None
        given = made(8, 4, seed=10 + step)
        part = share(given, size, 1) @ weight.T
        if bugs.get("added"):
            output = sum_over_ranks(part + bias)
        elif bugs.get("divided"):
            output = sum_over_ranks(part + bias / size)
        else:
            output = sum_over_ranks(part) + bias
        loss: Any = output.square().mean()
        loss.backward()
        losses.append(loss.item())
        gradients.append({"bias": grad(bias).clone()})
    return {"loss": losses, "gradient": gradients}


@entry("huggingface/text-generation-inference#1036", "agree", layouts=TP)
def bias_is_added_on_every_rank(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return row_parallel(layout, added=buggy)


@entry("pytorch/torchtitan#4332", "agree", layouts=TP)
def gradient_of_the_bias_is_divided_by_the_ranks(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return row_parallel(layout, divided=buggy)


def pipeline(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Train two layers on two stages: two micro batches, twice before each step."""
    rank, stages, micro, rounds = dist.get_rank(), layout["pp"], 2, 2
    first, second = nn.Parameter(made(5, 4, seed=1)), nn.Parameter(made(3, 5, seed=2))
    gradients = []
    for step in range(STEPS):
        first.grad = second.grad = None
        for number in range(rounds):
            for part, given in enumerate(made(8, 4, seed=100 * step + number).chunk(micro)):
                scale = 1 if bugs.get("summed") else micro * rounds
                if stages == 1 or rank == 0:
                    hidden = torch.tanh(given @ first.T)
                if stages > 1 and rank == 0:
                    dist.send(hidden.detach(), 1)
                    back = torch.empty_like(hidden)
                    dist.recv(back, 1)
                    hidden.backward(back)  # type: ignore[no-untyped-call]  # torch leaves it untyped
                if stages > 1 and rank == 1:
                    hidden = torch.empty(len(given), 5, requires_grad=True)
                    dist.recv(hidden.detach(), 0)
                if stages == 1 or rank == 1:
                    loss: Any = (hidden @ second.T).square().mean() / (scale if stages > 1 else micro * rounds)
                    loss.backward()
                if stages > 1 and rank == 1:
                    dist.send(grad_of(hidden), 0)
                if stages > 1 and bugs.get("wiped") and part + 1 < micro:
                    first.grad = second.grad = None
            if stages > 1 and bugs.get("rescaled"):
                for parameter in (first, second):
                    if parameter.grad is not None:
                        parameter.grad /= micro
        mine = {"first": first} if stages > 1 and rank == 0 else {"second": second} if stages > 1 else {}
        mine = mine or {"first": first, "second": second}
        gradients.append({name: grad(parameter).clone() for name, parameter in mine.items()})
    return {"gradient": gradients}


def grad_of(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


@entry("deepspeedai/DeepSpeed#7773", "agree", layouts=PP)
def micro_batches_of_a_pipeline_are_summed(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return pipeline(layout, summed=buggy)


@entry("pytorch/torchtitan#1733", "agree", layouts=PP)
def accumulated_gradients_are_scaled_in_every_round(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return pipeline(layout, rescaled=buggy)


@entry("NVIDIA-NeMo/Automodel#3530", "agree", layouts=PP)
def only_the_last_micro_batch_trains(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return pipeline(layout, wiped=buggy)


def attention(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Train causal attention, with the queries split over the sequence."""
    size, length = layout["cp"], 8
    rank = dist.get_rank() % size
    query, key, value = (made(length, 4, seed=seed) for seed in (1, 2, 3))
    mine = share(query, size)
    keys = [torch.empty(length // size, 4) for _ in range(size)]
    dist.all_gather(keys, share(key, size))
    offset = 0 if bugs.get("offset") else rank * (length // size)
    mask = torch.arange(length)[None, :] <= torch.arange(len(mine))[:, None] + offset
    scores = (mine @ torch.cat(keys).T).masked_fill(~mask, float("-inf"))
    output = scores.softmax(-1) @ value
    total = output.square().sum()
    count = torch.tensor(float(len(mine)))
    dist.all_reduce(total)
    if not bugs.get("count"):
        dist.all_reduce(count)
    return {"output": output, "loss": (total / count).item()}


@entry("cornstarch-org/Cornstarch#38", "agree", layouts=CP)
def causal_mask_begins_anew_on_every_rank(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return attention(layout, offset=buggy)


@entry("NVIDIA/Megatron-LM#906", "agree", layouts=CP)
def loss_is_divided_by_the_tokens_of_the_rank(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return attention(layout, count=buggy)


def evaluated(layout: simdist.Layout, **bugs: bool) -> dict[str, Any]:
    """Return the accuracy over seven samples, which two ranks share with padding."""
    size, samples = layout["dp"], 7
    rank = dist.get_rank() % size
    correct = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    each = -(-samples // size)
    mine = correct[[(rank + size * place) % samples for place in range(each)]]
    gathered = [torch.empty(each) for _ in range(size)]
    dist.all_gather(gathered, mine)
    answers = torch.stack(gathered, 1).flatten()
    if bugs.get("means"):
        mean = correct[rank::size].mean()
        dist.all_reduce(mean)
        return {"accuracy": (mean / size).item()}
    return {"accuracy": (answers if bugs.get("padded") else answers[:samples]).mean().item()}


@entry("huggingface/accelerate#952", "agree", layouts=DP)
def samples_that_pad_the_last_batch_count(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return evaluated(layout, padded=buggy)


@entry("huggingface/accelerate#1674", "agree", layouts=DP)
def metric_is_the_mean_of_means_of_uneven_ranks(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    return evaluated(layout, means=buggy)


@entry("Lightning-AI/pytorch-lightning#19045", "agree", layouts=DP)
def metrics_are_reduced_in_the_order_of_each_rank(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    size = layout["dp"]
    metrics = {"loss": torch.tensor(2.0), "accuracy": torch.tensor(0.5)}
    names = list(metrics)
    if buggy and dist.get_rank() % 2:
        names.reverse()  # this rank's batch logged them in this order
    for name in names:
        dist.all_reduce(metrics[name])
    return {name: (value / size).item() for name, value in metrics.items()}


@entry("pytorch/pytorch#28552", "agree", layouts=DP)
def ranks_begin_with_weights_of_their_own(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    weight = nn.Parameter(made(3, 4, seed=1 + (dist.get_rank() if buggy else 0)))
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss: Any = (share(made(8, 4, seed=10 + step), layout["dp"]) @ weight.T).square().mean()
        loss.backward()
        dist.all_reduce(grad(weight))
        grad(weight).div_(layout["dp"])
        optimizer.step()
    return {"weight": weight.detach()}


@entry("huggingface/transformers#48687", "agree", layouts=TP)
def gradient_of_the_router_misses_the_experts_of_others(layout: simdist.Layout, buggy: bool) -> dict[str, Any]:
    size, experts = layout["tp"], 4
    router = nn.Parameter(made(experts, 4, seed=1))
    mine = nn.Parameter(share(made(experts, 4, 4, seed=2), size))
    begin = (dist.get_rank() % size) * (experts // size)
    given = made(8, 4, seed=3)
    weights = (given @ (router if buggy else copy_to_ranks(router)).T).softmax(-1)[:, begin : begin + len(mine)]
    loss: Any = sum_over_ranks(torch.einsum("te,eij,tj->ti", weights, mine, given)).square().mean()
    loss.backward()
    return {"router": grad(router), "loss": loss.item()}
