"""Ranks that take different paths: they hang, time out or fail, with judges and without."""

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


@entry("deepspeedai/DeepSpeed#7549", "failure")
def whether_to_try_again_is_decided_by_each_rank(buggy: bool) -> None:
    failed = torch.tensor(float(dist.get_rank() == 1))
    if not buggy:
        dist.all_reduce(failed)
    if failed:
        dist.barrier()
        dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(2))


@entry("modelscope/ms-swift#9443", "failure")
def a_batch_of_text_skips_the_part_for_images(buggy: bool) -> None:
    has_images = dist.get_rank() != 2
    vision, language = torch.ones(16, requires_grad=True), torch.ones(4, requires_grad=True)
    loss = language.sum()
    if has_images or not buggy:
        loss = loss + vision.sum() * float(has_images)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for parameter in (vision, language):
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


@entry("huggingface/accelerate#3814", "failure")
def validation_has_other_lengths(buggy: bool) -> None:
    batches = 2 + (dist.get_rank() == 0 and buggy)
    for _ in range(batches):
        dist.all_gather([torch.ones(2) for _ in range(dist.get_world_size())], torch.ones(2))


@entry("pytorch/pytorch#81291", "failure")
def a_group_is_made_by_its_members_only(buggy: bool) -> None:
    ranks = [0, 1]
    if dist.get_rank() in ranks or not buggy:
        dist.new_group(ranks)
    dist.new_group([1, 2])
