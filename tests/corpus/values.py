"""Values that are not finite, and operations that are left over at the end."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.corpus._entries import entry


@entry("allenai/OLMo-core#657", "finite", rank=2, line="loss.backward()")
def all_labels_of_a_rank_are_ignored(buggy: bool) -> None:
    model = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        labels = torch.tensor([0, 1, 2])
        if step == 1 and dist.get_rank() == 2:
            labels.fill_(-100)
        optimizer.zero_grad()
        scores = model(torch.ones(3, 4))
        valid = labels != -100
        losses = nn.functional.cross_entropy(scores, labels, reduction="none")
        loss: Any = (losses * valid).sum() / (valid.sum() if buggy else valid.sum().clamp(min=1))
        loss.backward()
        optimizer.step()


@entry("ecmwf/WeatherGenerator#2724", "finite", rank=1, line="loss.backward()")
def only_rank_0_decides_whether_a_loss_is_bad(buggy: bool) -> None:
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss: Any = model(torch.ones(3, 4)).square().mean()
        if step == 1 and dist.get_rank() == 1:
            loss = loss * float("nan")
        bad = (~torch.isfinite(loss.detach())).float()
        dist.broadcast(bad, 0) if buggy else dist.all_reduce(bad)
        if bad:
            continue
        loss.backward()
        optimizer.step()


@entry("MPI Bugs Initiative, request lifecycle", "collectives", line="async_op=True")
def nobody_waits_for_the_sum(buggy: bool) -> None:
    total = torch.full((4,), float(dist.get_rank()))
    work = dist.all_reduce(total, async_op=True)
    if not buggy and work is not None:
        work.wait()
    dist.barrier()


@entry("MPI Bugs Initiative, unmatched call", "collectives", rank=0, line="dist.isend")
def a_message_is_never_received(buggy: bool) -> None:
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(2), 1, tag=3)
        if not buggy and work is not None:
            work.wait()
    if dist.get_rank() == 1 and not buggy:
        dist.recv(torch.ones(2), 0, tag=3)


@entry("pytorch/pytorch#61875", "buffers", rank=0, line="dist.isend")
def the_buffer_of_a_send_is_used_again(buggy: bool) -> None:
    if dist.get_rank() == 0:
        given = torch.zeros(4)
        for number in range(3):
            if not buggy:
                given = torch.zeros(4)
            given.fill_(float(number))
            work = dist.isend(given, 1)
            given.add_(1.0) if buggy else None
            if work is not None:
                work.wait()
    if dist.get_rank() == 1:
        for _ in range(3):
            dist.recv(torch.zeros(4), 0)


@entry("huggingface/accelerate#2258", "collectives", rank=0, line="async_op=True")
def one_rank_has_a_batch_more(buggy: bool) -> None:
    batches = 3 if dist.get_rank() == 0 and buggy else 2
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(batches)]
    for work in works[:2]:
        if work is not None:
            work.wait()


@entry("pytorch/pytorch#14632", "buffers", line="dist.all_gather(")
def parts_of_all_ranks_are_gathered_into_one_tensor(buggy: bool) -> None:
    ranks = dist.get_world_size()
    losses = [torch.zeros(1)] * ranks if buggy else [torch.zeros(1) for _ in range(ranks)]
    for step in range(3):
        dist.all_gather(losses, torch.tensor([float(step + dist.get_rank())]))
