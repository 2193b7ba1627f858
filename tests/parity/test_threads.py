"""Programs with threads compute the same on simulated ranks as on real Gloo."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.parity.arms import simulated
from tests.real_gloo import run_real


def collectives_of_threads(rank: int) -> list[Any]:
    """Run three threads, each with its own group and random generator."""
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(3)]
    found: list[Any] = [None] * 3

    def work(number: int) -> None:
        value = torch.full((4,), float(rank + number))
        for _ in range(3):
            dist.all_reduce(value, group=groups[number])
        found[number] = value.tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(inputs)
        return out


def prefetched(count: int) -> Iterator[torch.Tensor]:
    """Yield batches that a thread makes ahead."""
    line: queue.Queue[torch.Tensor | None] = queue.Queue(2)

    def fill() -> None:
        for number in range(count):
            line.put(torch.full((3, 4), float(number)) / 7)
        line.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (batch := line.get()) is not None:
        yield batch


def training_with_threads(rank: int) -> list[Any]:
    """Train with DDP: batches from a prefetching thread, losses summed by a pool, backward in a thread at the end."""
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ThreadPoolExecutor(2) as pool:
        losses = []
        for batch in prefetched(4):
            optimizer.zero_grad()
            loss = model(batch + rank).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(pool.submit(round, loss.item(), 6))
        done = [each.result() for each in losses]

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4) * rank).sum().backward()
        optimizer.step()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(step).result()
    return [done, [parameter.detach().flatten()[:2].tolist() for parameter in model.parameters()]]


@pytest.mark.parametrize("program", [collectives_of_threads, training_with_threads])
def test_both_arms_have_the_same_values(program: Callable[[int], Any]) -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        value = program(dist.get_rank())
        dist.barrier()
        dist.destroy_process_group()
        return value

    real = run_real(body, 2)

    assert [(rank.status, rank.message, rank.value) for rank in simulated(body, 2)] == [
        (rank.status, rank.message, rank.value) for rank in real
    ]
    assert real[0].status == "returned"
