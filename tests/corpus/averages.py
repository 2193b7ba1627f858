"""Losses, gradients and averages of parameters that are of another size, or of another rank, than meant."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.corpus._entries import entry
from tests.corpus.replicas import average, batch, net


@entry("NVIDIA/apex#664", "collectives", rank=0, line="loss.backward()")
def loss_is_averaged_over_the_ranks_before_ddp_averages_gradients(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(batch(step)).square().mean()
        for_the_log = loss if buggy else loss.detach().clone()
        dist.all_reduce(for_the_log)
        for_the_log.div_(dist.get_world_size())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@entry("sanderwood/bgpt#5", "collectives", rank=0, line="loss.backward()")
def loss_comes_back_divided_from_rank_0(buggy: bool) -> None:
    def averaged(loss: Any) -> Any:
        loss = loss.unsqueeze(0)
        dist.reduce(loss, dst=0)
        loss = loss / dist.get_world_size()
        dist.broadcast(loss, src=0)
        return loss

    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(batch(step)).square().mean()
        if buggy:
            loss = averaged(loss)
        else:
            averaged(loss.detach().clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@entry("jingyaogong/minimind#853", "replicas", line="optimizer.step()")
def loss_is_computed_past_ddp(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    policy = model.module if buggy else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        policy(batch(step)).square().mean().backward()
        optimizer.step()


@entry("meta-pytorch/torchforge#71", "replicas", rank=0, line=".backward()")
def gradients_of_shards_are_never_cleared(buggy: bool) -> None:
    model = net()
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(batch(step)).square().mean().backward()
        optimizer.step()
        if not buggy:
            optimizer.zero_grad()


@entry("lodestone-rock/RamTorch#13", "replicas", line=".backward()")
def stepped_shares_are_not_sent_to_the_other_ranks(buggy: bool) -> None:
    model = net()
    parameters = list(model.parameters())
    replaced = {id(parameter) for layer in model if isinstance(layer, nn.Linear) for parameter in layer.parameters()}
    ranks = dist.get_world_size()
    optimizer = torch.optim.SGD(parameters[dist.get_rank() :: ranks], lr=0.1)
    for step in range(3):
        model.zero_grad()
        model(batch(step)).square().mean().backward()
        average(parameters)
        optimizer.step()
        for index, parameter in enumerate(parameters):
            if not buggy or id(parameter) not in replaced:
                dist.broadcast(parameter.detach(), index % ranks)


@entry("lucidrains/ema-pytorch#9", "")
def all_ranks_evaluate_the_average_that_rank_0_keeps(buggy: bool) -> None:
    model = DistributedDataParallel(net())
    averaged = deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for kept, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
                if dist.get_rank() == 0 or not buggy:
                    kept.lerp_(parameter, 0.5)
            if step % 2:
                averaged.eval()
                error = averaged(batch(100 + step)).square().mean()
                dist.all_reduce(error)
