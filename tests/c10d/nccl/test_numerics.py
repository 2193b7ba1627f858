"""Sums, bit for bit as one ring adds them up, compared with a fold in this file; and their costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simdist.cluster import build
from tests.c10d.nccl.worlds import join, of, results

_premul: Any = _c._make_nccl_premul_sum
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2]


def inputs(ranks: int, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return each rank's input: numbers of many magnitudes, whose sum depends on the order."""
    found = []
    for rank in range(ranks):
        generator = torch.Generator().manual_seed(rank)
        scale = torch.pow(2.0, torch.randint(-6, 6, (length,), generator=generator))
        found.append((torch.randn(length, generator=generator) * scale).to(dtype))
    return found


def owner_of(element: int, length: int, ranks: int, size: int) -> int:
    """Return the rank at which an element's sum ends: NCCL's loops over chunks, one channel, protocol Simple."""
    chunk = (2 << 20) // size
    first = element // (ranks * chunk) * ranks * chunk
    left = length - first
    if left < ranks * chunk:
        unit = 16 // size
        chunk = ((left + ranks - 1) // ranks + unit - 1) // unit * unit
    return (element - first) // chunk


def hop(local: float, received: float, dtype: torch.dtype) -> float:
    """Return the sum of two numbers in the type, or in halves for eight bits, rounded to the type."""
    if dtype in (torch.float8_e5m2, torch.float8_e4m3fn):
        summed = (torch.tensor(local, dtype=torch.float64) + received).to(torch.float16)
        return summed.to(dtype).double().item()
    if dtype is torch.float64:
        return local + received
    exact = np.float64(local) + np.float64(received)  # for two of these numbers it is exact, or rounds the same way
    return torch.tensor(exact, dtype=torch.float64).to(dtype).double().item()


def folded(parts: list[torch.Tensor], owner: Callable[[int], int], elements: list[int]) -> list[float]:
    """x_c + (x_{c-1} + (... + (x_{c+2} + x_{c+1})))."""
    ranks, dtype = len(parts), parts[0].dtype
    found = []
    for element in elements:
        last = owner(element)
        running = parts[(last + 1) % ranks][element].double().item()
        for step in range(2, ranks + 1):
            running = hop(parts[(last + step) % ranks][element].double().item(), running, dtype)
        found.append(running)
    return found


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_all_reduce_adds_around_the_ring(ranks: int, dtype: torch.dtype) -> None:
    length = 203

    def body() -> list[float]:
        tensor = inputs(ranks, length, dtype)[join()].cuda()
        dist.all_reduce(tensor)
        return tensor.double().tolist()

    found = results(body, ranks)

    size = torch.empty(0, dtype=dtype).element_size()
    expected = folded(inputs(ranks, length, dtype), lambda e: owner_of(e, length, ranks, size), list(range(length)))
    assert found == [expected] * ranks


def test_a_large_all_reduce_has_a_loop_of_full_chunks_and_a_rest() -> None:
    ranks, length = 3, 3 * (1 << 19) + 1001

    def body() -> torch.Tensor:
        tensor = inputs(ranks, length, torch.float32)[join()].cuda()
        dist.all_reduce(tensor)
        return tensor.cpu()

    found = results(body, ranks)[0]

    edges = (0, 1 << 19, 2 << 19, 3 << 19, (3 << 19) + 336, length - 5)
    elements = [edge + place for edge in edges for place in range(-4, 5) if 0 <= edge + place < length]
    expected = folded(inputs(ranks, length, torch.float32), lambda e: owner_of(e, length, ranks, 4), elements)
    assert found[elements].double().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_reduce_scatter_and_a_reduce_end_at_their_rank(dtype: torch.dtype) -> None:
    ranks, each = 4, 11

    def body() -> tuple[list[float], list[float]]:
        rank = join()
        mine = inputs(ranks, ranks * each, dtype)[rank].cuda()
        part = torch.empty(each, dtype=dtype, device="cuda")
        group: Any = dist.group.WORLD
        group._reduce_scatter_base(part, mine).wait()
        dist.reduce(mine, 2)
        return part.double().tolist(), mine.double().tolist()

    found = results(body, ranks)

    parts = inputs(ranks, ranks * each, dtype)
    everything = list(range(ranks * each))
    assert [value for part, _ in found for value in part] == folded(parts, lambda e: e // each, everything)
    assert found[2][1] == folded(parts, lambda e: 2, everything)
    assert found[1][1] == parts[1].double().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_an_average_multiplies_each_operand_first_and_rounds(dtype: torch.dtype) -> None:
    ranks, length = 3, 50

    def body() -> tuple[list[float], list[float]]:
        rank = join()
        first, second = (inputs(ranks, length, dtype)[rank].cuda() for _ in range(2))
        dist.all_reduce(first, dist.ReduceOp.AVG)
        dist.all_reduce(second, _premul(0.3))
        return first.double().tolist(), second.double().tolist()

    found = results(body, ranks)[0]

    size = torch.empty(0, dtype=dtype).element_size()
    for values, factor in zip(found, (1 / 3, 0.3), strict=True):
        rounded = torch.tensor(factor, dtype=dtype).double().item()
        parts = [(part.double() * rounded).to(dtype) for part in inputs(ranks, length, dtype)]
        assert values == folded(parts, lambda e: owner_of(e, length, ranks, size), list(range(length)))


def test_integers_wrap_and_their_average_is_cut_off() -> None:
    def body() -> list[Any]:
        rank = join()
        small, negative = of(100, dtype=torch.int8), of(-3 - rank, dtype=torch.int32)
        dist.all_reduce(small)
        dist.all_reduce(negative, dist.ReduceOp.AVG)
        return [small.item(), negative.item()]

    assert results(body) == [[-56, -3]] * 2


@pytest.mark.parametrize(
    ("operation", "latencies", "shares"),
    [
        ("all_reduce", 6, 6 / 4),
        ("reduce_scatter", 3, 3 / 4),
        ("all_gather", 3, 3),
        ("broadcast", 3, 1),
        ("all_to_all", 1, 3 / 4),
    ],
)
def test_costs_are_those_of_one_ring(operation: str, latencies: int, shares: float) -> None:
    size = 1 << 20

    def body() -> float:
        import time

        rank = join()
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        begin = time.monotonic_ns()
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        group: Any = dist.group.WORLD
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: dist.all_reduce(tensor),
            "reduce_scatter": lambda: group._reduce_scatter_base(tensor[: size // 4], tensor).wait(),
            "all_gather": lambda: group._allgather_base(
                torch.empty(4 * size, dtype=torch.uint8, device="cuda"), tensor
            ),
            "broadcast": lambda: dist.broadcast(tensor, 1),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(tensor), tensor),
        }
        calls[operation]()
        torch.cuda.synchronize()
        assert rank >= 0
        return time.monotonic_ns() - begin

    cluster = build(4, local_latency_ns=1000, local_bandwidth_bytes_per_s=1_000_000_000)

    assert results(body, 4, cluster=cluster) == [round(1000 * latencies + shares * size)] * 4


def test_two_collectives_that_overlap_share_the_links() -> None:
    def body(groups: int) -> float:
        import time

        join()
        others = [dist.new_group([0, 1]) for _ in range(2)]
        tensors = [torch.empty(1 << 18, device="cuda") for _ in range(2)]
        for group in others:
            dist.all_reduce(of(1), group=group)
        torch.cuda.synchronize()
        begin = time.monotonic_ns()
        for tensor, group in list(zip(tensors, others, strict=True))[:groups]:
            dist.all_reduce(tensor, group=group, async_op=True)
        torch.cuda.synchronize()
        return time.monotonic_ns() - begin

    cluster = build(2, local_latency_ns=0, local_bandwidth_bytes_per_s=1_000_000_000)

    alone, both = (results(body, args=[groups], cluster=cluster)[0] for groups in (1, 2))

    assert alone == 1 << 20
    assert both == 2 << 20
