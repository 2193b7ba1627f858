"""The wait-for graph where the wait is not for a work: futures, DDP's backward, the making of a group."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch import nn

import simdist


def test_a_deadlock_in_ddps_backward_names_the_operation_that_lacks_a_rank() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        loss = model(torch.ones(1, 2)).sum()
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        loss.backward()

    result = simdist.run(body, world_size=2)

    assert result.deadlock is not None
    text = str(result.deadlock)
    assert "wait for a future of all_reduce #" in text
    assert "recv(src=0, tag=0) in group '0'" in text
    assert result.deadlock.cycle == ("rank 0", "rank 1", "rank 0")


def test_a_deadlock_on_a_future_that_follows_another_is_found() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert work is not None
            work.get_future().then(lambda _: None).then(lambda _: None).wait()
        else:
            dist.recv(torch.ones(1), 0)

    result = simdist.run(body, world_size=2)

    assert result.deadlock is not None
    assert "wait for a future of all_reduce #0 in group '0'" in str(result.deadlock)


def test_ranks_that_make_groups_in_another_order_are_a_deadlock_with_names() -> None:
    def body() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.new_group([0, 1])
        else:
            dist.recv(torch.ones(1), 0)

    result = simdist.run(body, world_size=2)

    assert result.deadlock is not None
    assert "not there yet: [1]" in str(result.deadlock)
    assert result.deadlock.cycle == ("rank 0", "rank 1", "rank 0")


def test_a_subgroups_members_are_found_by_their_ranks_in_the_world() -> None:
    def body() -> None:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
        if dist.get_rank() == 1:
            dist.new_group([1, 2], use_local_synchronization=True)
        elif dist.get_rank() == 2:
            dist.recv(torch.ones(1), 1)

    result = simdist.run(body, world_size=3)

    assert result.deadlock is not None
    assert result.deadlock.cycle == ("rank 1", "rank 2", "rank 1")
