"""DDP's reducer waits in C++, inside backward: for works, for futures, and for values that it reads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import simdist
from tests.c10d.nccl import worlds as on_nccl


def shared(device: str) -> nn.Module:
    """Return two layers that share one weight."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second).to(device)


def start(backend: str, device: str) -> int:
    """Make the default group and select the rank's device; returns the rank."""
    dist.init_process_group(backend)
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    return dist.get_rank()


@pytest.mark.parametrize("divide_by_initial", [False, True])
def test_ranks_with_fewer_inputs_join_over_nccl(divide_by_initial: bool) -> None:
    def body() -> list[float]:
        rank = on_nccl.join()
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False).cuda(), device_ids=[rank])
        found = []
        with model.join(divide_by_initial_world_size=divide_by_initial):
            for _ in range(1 if rank == 0 else 3):
                model.zero_grad()
                model(torch.ones(1, 2, device="cuda")).sum().backward()
                found.append(float(next(model.parameters()).grad[0, 0]))  # type: ignore[index]
        return found

    alone = 0.5 if divide_by_initial else 1.0
    assert on_nccl.results(body) == [[1.0], [1.0, alone, alone]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_reentrant_backward_ends_a_first_iteration_with_a_static_graph(backend: str, device: str) -> None:
    if (backend, device) == ("nccl", "cpu"):
        pytest.skip("NCCL works on devices")

    def body() -> list[torch.Tensor]:
        rank = start(backend, device)
        model = DistributedDataParallel(shared(device), static_graph=True)
        for _ in range(2):
            model.zero_grad()
            taken = torch.full((2, 4), rank + 1.0, device=device, requires_grad=True)
            checkpoint(model, taken, use_reentrant=True).sum().backward()
        return [each.grad.cpu() for each in model.parameters() if each.grad is not None]

    def alone() -> list[torch.Tensor]:
        model = shared("cpu")
        model(torch.full((2, 4), 1.5)).sum().backward()
        return [each.grad for each in model.parameters() if each.grad is not None]

    run: Any = simdist.run
    result = run(body, world_size=2, backend="nccl" if device == "cuda" else "gloo")
    result.raise_for_failure()
    for found in result.values:
        torch.testing.assert_close(found, alone())


def test_a_hook_may_hand_ddp_a_future_that_a_thread_completes() -> None:
    def body() -> float:
        rank = start("gloo", "cpu")
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False))

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations, which are texts here
            made: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            gradient = bucket.buffer()

            def reduce() -> None:
                dist.all_reduce(gradient)
                made.set_result(gradient)

            threading.Thread(target=reduce).start()
            return made

        model.register_comm_hook(None, hook)
        model(torch.full((1, 1), rank + 1.0)).sum().backward()
        return float(next(model.parameters()).grad)  # type: ignore[arg-type]

    run: Any = simdist.run
    result = run(body, world_size=2)
    result.raise_for_failure()
    assert result.values == [3.0, 3.0]
