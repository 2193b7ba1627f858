"""Collectives leave no memory allocated on their devices, whatever is recorded of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.c10d.nccl.worlds import join, results


def made(length: int = 1000) -> torch.Tensor:
    return torch.ones(length, device="cuda")


def coalesced(rank: int) -> None:
    manager: Any = dist
    with manager._coalescing_manager(device=torch.device("cuda", rank)):
        dist.all_reduce(made())
        dist.all_reduce(made(500))


def exchanged(rank: int) -> None:
    call = dist.isend if rank == 0 else dist.irecv
    for work in dist.batch_isend_irecv([dist.P2POp(call, made(), 1 - rank)]):
        work.wait()


OPERATIONS: dict[str, Callable[[int], Any]] = {
    "all_reduce": lambda rank: dist.all_reduce(made()),
    "all_reduce that is waited for": lambda rank: dist.all_reduce(made(), async_op=True).wait(),
    "all_reduce that nobody waits for": lambda rank: dist.all_reduce(made(), async_op=True),
    "all_reduce with a future": lambda rank: dist.all_reduce(made(), async_op=True).get_future().wait(),
    "all_reduce of nothing": lambda rank: dist.all_reduce(made(0)),
    "reduce_scatter": lambda rank: dist.reduce_scatter_tensor(made(500), made()),
    "all_gather": lambda rank: dist.all_gather_into_tensor(made(2000), made()),
    "uneven all_gather": lambda rank: dist.all_gather([made(10), made(20)], made(10 + 10 * rank)),
    "a block": coalesced,
    "a message": lambda rank: dist.send(made(), 1) if rank == 0 else dist.recv(made(), 0),
    "a batch of messages": exchanged,
    "an object": lambda rank: dist.broadcast_object_list([rank], src=0),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_asynchronous_collective_keeps_its_tensors_until_somebody_waits() -> None:
    def body() -> list[int]:
        join()
        dist.all_reduce(made())
        torch.cuda.synchronize()
        found = []

        def note() -> None:
            found.append(torch.cuda.memory_allocated() >> 20)

        given, filled = made(1 << 20), made(1 << 21)
        work: Any = dist.all_gather_into_tensor(filled, given, async_op=True)
        del given, filled
        torch.cuda.synchronize()
        note()
        work.wait()
        note()  # the work keeps its outputs
        del work
        note()
        dist.all_reduce(made(1 << 20), async_op=True)
        torch.cuda.synchronize()
        note()  # before any wait
        dist.all_reduce(made(1))
        note()
        return found

    assert results(body) == [[12, 8, 0, 4, 0]] * 2


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:barrier:UserWarning")
@pytest.mark.parametrize("timed", ["0", "1"])
def test_an_operation_keeps_no_memory_once_it_is_over(timed: str) -> None:
    def body() -> dict[str, int]:
        rank = join()
        dist.barrier()
        gc.disable()  # no memory may wait for a collection
        left = {}
        try:
            for name, call in OPERATIONS.items():
                for attempt in range(2):
                    torch.cuda.synchronize()
                    before = torch.cuda.memory_allocated()
                    call(rank)
                    torch.cuda.synchronize()
                    dist.barrier()
                    if attempt:
                        left[name] = torch.cuda.memory_allocated() - before
        finally:
            gc.enable()
        return left

    for left in results(body, env={"TORCH_NCCL_ENABLE_TIMING": timed}):
        assert left == dict.fromkeys(OPERATIONS, 0)
