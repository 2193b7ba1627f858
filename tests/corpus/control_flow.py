"""Ranks that take other ways: they hang, time out or fail, with judges and without."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.corpus._entries import entry


@entry("Lightning-AI/pytorch-lightning#379", "failure")
def early_stop_is_decided_by_each_rank(buggy: bool) -> None:
    for epoch in range(3):
        metric = torch.tensor(float(epoch if dist.get_rank() else 0))
        if not buggy:
            dist.all_reduce(metric)
        if metric >= 1:
            break
        dist.all_reduce(torch.ones(1))


@entry("Lightning-AI/pytorch-lightning#19106", "failure")
def keys_that_are_logged_differ(buggy: bool) -> None:
    keys = ["loss", "accuracy"] if dist.get_rank() or not buggy else ["loss"]
    for _ in keys:
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(4))
    dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], torch.ones(4))


@entry("huggingface/transformers#48569", "failure")
def only_rank_0_saves_and_enters_a_collective(buggy: bool) -> None:
    if dist.get_rank() == 0 or not buggy:
        dist.all_gather([torch.ones(2) for _ in range(dist.get_world_size())], torch.ones(2))


@entry("inclusionAI/AReaL#311", "failure")
def the_group_is_forgotten(buggy: bool) -> None:
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(2), group=None if buggy else group)


@entry("huggingface/accelerate#2258", "failure")
def a_rank_leaves_the_epoch_early(buggy: bool) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    for _ in range(2 if buggy and dist.get_rank() == 1 else 3):
        model(torch.ones(1, 2)).sum().backward()


@entry("deepspeedai/DeepSpeed#5117", "collectives", rank=0, line="dist.broadcast")
def the_last_batch_is_shorter_on_the_source(buggy: bool) -> None:
    short = buggy and dist.get_rank() == 0
    dist.broadcast(torch.ones(2 if short else 4), 0)
    dist.barrier()
