"""Ranks that do not agree on what they call: Gloo's results, including wrong sums and aborts.

One body, two arms. The tests compare how each rank ends, the error it sees, and the final content of its tensor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.parity.arms import simulated, template
from tests.real_gloo import run_real

Tensor = torch.Tensor


def filled(rank: int, count: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((count,), rank + 1, dtype=dtype)


def six_on_rank_0(rank: int) -> Tensor:
    return filled(rank, 6 if rank == 0 else 4)


def four_on_rank_0(rank: int) -> Tensor:
    return filled(rank, 4 if rank == 0 else 6)


def reduce_longer(rank: int, tensor: Tensor) -> None:
    dist.all_reduce(tensor)


def broadcast_from_0(rank: int, tensor: Tensor) -> None:
    dist.broadcast(tensor, 0)


def send_to_1(rank: int, tensor: Tensor) -> None:
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)


def broadcast_against_all_reduce(rank: int, tensor: Tensor) -> None:
    if rank == 0:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)


def barrier_against_all_reduce(rank: int, tensor: Tensor) -> None:
    if rank == 0:
        dist.barrier()
    else:
        dist.all_reduce(tensor)


def two_roots(rank: int, tensor: Tensor) -> None:
    dist.broadcast(tensor, 0 if rank == 0 else 1)


def another_root_on_rank_2(rank: int, tensor: Tensor) -> None:
    dist.broadcast(tensor, 1 if rank == 2 else 0)


def two_operations(rank: int, tensor: Tensor) -> None:
    dist.all_reduce(tensor, dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.PRODUCT)


def reduce_to_two_roots(rank: int, tensor: Tensor) -> None:
    dist.reduce(tensor, 0 if rank == 0 else 1)


def reduce_to_0(rank: int, tensor: Tensor) -> None:
    dist.reduce(tensor, 0)


def gather_on_0(rank: int, tensor: Tensor) -> None:
    dist.gather(tensor, [torch.zeros(4) for _ in range(3)] if rank == 0 else None)


def two_orders(rank: int, tensor: Tensor) -> None:
    halves = [tensor[:2], tensor[2:]]
    for work in [dist.all_reduce(half, async_op=True) for half in (halves if rank == 0 else halves[::-1])]:
        work.wait()


CASES: dict[str, tuple[Callable[[int, Tensor], None], Callable[[int], Tensor]]] = {
    "all_reduce of 6 against 4": (reduce_longer, six_on_rank_0),
    "all_reduce of 4 against 6": (reduce_longer, four_on_rank_0),
    "broadcast of 6 into 4": (broadcast_from_0, six_on_rank_0),
    "broadcast of 4 into 6": (broadcast_from_0, four_on_rank_0),
    "send of 6 into 4": (send_to_1, six_on_rank_0),
    "send of 4 into 6": (send_to_1, four_on_rank_0),
    "broadcast against all_reduce": (broadcast_against_all_reduce, filled),
    "barrier against all_reduce": (barrier_against_all_reduce, filled),
    "broadcast with two roots": (two_roots, filled),
    "broadcast with another root on rank 2": (another_root_on_rank_2, filled),
    "two reduce operations": (two_operations, filled),
    "reduce to two roots": (reduce_to_two_roots, filled),
    "reduce of 6 against 4": (reduce_to_0, six_on_rank_0),
    "gather of 6 into 4": (gather_on_0, lambda rank: filled(rank, 6 if rank == 1 else 4)),
    "two all_reduces in two orders": (two_orders, filled),
}


def main(name: str) -> tuple[str, list[float]]:
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    dist.barrier()
    call, make = CASES[name]
    rank = dist.get_rank()
    tensor = make(rank)
    try:
        call(rank, tensor)
    except RuntimeError as error:
        seen = template(str(error))
    else:
        seen = "ok"
    left = tensor.tolist()
    time.sleep(2)  # no rank leaves while others wait
    return seen, left


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_disagree_end_as_on_real_gloo(name: str) -> None:
    simulation = simulated(main, 3, args=(name,))
    for _ in range(3):  # a busy machine may tear a real world down in another order
        reality = run_real(main, 3, args=(name,), timeout_s=20)
        if _ends(reality) == _ends(simulation):
            break

    assert _ends(simulation) == _ends(reality)


def _ends(outcomes: list[Any]) -> list[tuple[Any, ...]]:
    return [(outcome.status, outcome.exit_code, outcome.value) for outcome in outcomes]


def test_another_type_kills_the_neighbour_below() -> None:
    # What other ranks see is a race on real processes (facts of torch 2.13), so only the rank that dies is compared.
    def doubles_on_rank_0() -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
        dist.all_reduce(filled(dist.get_rank(), dtype=torch.float64 if dist.get_rank() == 0 else torch.float32))

    simulation = simulated(doubles_on_rank_0, 3)
    reality = run_real(doubles_on_rank_0, 3, timeout_s=20)

    assert (simulation[2].status, simulation[2].exit_code) == ("killed", -6)
    assert (reality[2].status, reality[2].exit_code) == ("killed", -6)
    assert [outcome.status for outcome in simulation[:2]] == ["raised", "raised"]
