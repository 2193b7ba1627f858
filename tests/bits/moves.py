"""Collectives that only move data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.bits.bench import DTYPES, HUGE_WORLD, LARGE, MIB, Bench, BitsCase, Result, Tensor, short_name

__all__ = ["move_cases"]

_c10d: Any = dist.distributed_c10d


def _pieces(bench: Bench, tensor: Tensor) -> list[Tensor]:
    return [torch.zeros_like(tensor) for _ in range(bench.world)]


def _chunks(bench: Bench, tensor: Tensor) -> list[Tensor]:
    return list(tensor.chunk(bench.world)) if tensor.numel() else [tensor] * bench.world


def _move_all_gather(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine)
    dist.all_gather(parts, mine)
    return parts


def _move_all_gather_into_tensor(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(sent)
    _c10d.all_gather_into_tensor(output, mine)
    return [output]


def _move_all_to_all_single(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(sent)
    dist.all_to_all_single(output, sent)
    return [output]


def _move_all_to_all(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine)
    dist.all_to_all(parts, _chunks(bench, sent))
    return parts


def _move_broadcast(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    dist.broadcast(mine, root)
    return [mine]


def _move_gather(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    parts = _pieces(bench, mine) if bench.rank == root else None
    dist.gather(mine, parts, root)
    return parts or []


def _move_scatter(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(mine)
    dist.scatter(output, _chunks(bench, sent) if bench.rank == root else None, root)
    return [output]


def _move_send_and_recv(bench: Bench, mine: Tensor, sent: Tensor, root: int) -> Result:
    output = torch.zeros_like(mine)
    request = dist.isend(mine, (bench.rank + 1) % bench.world)
    dist.recv(output, (bench.rank - 1) % bench.world)
    assert request is not None
    request.wait()
    return [output]


Move = Callable[[Bench, Tensor, Tensor, int], Result]
UNROOTED: dict[str, Move] = {
    "all_gather": _move_all_gather,
    "all_gather_into_tensor": _move_all_gather_into_tensor,
    "all_to_all_single": _move_all_to_all_single,
    "all_to_all": _move_all_to_all,
    "send and recv": _move_send_and_recv,
}
ROOTED: dict[str, Move] = {"broadcast": _move_broadcast, "gather": _move_gather, "scatter": _move_scatter}


def _move_case(call: str, move: Move, dtype: torch.dtype, size: int, root: int) -> BitsCase:
    name = f"{call} {short_name(dtype)} {size}" + (f" root {root}" if call in ROOTED else "")

    def compute(bench: Bench) -> Result:
        sent = bench.data(f"{name} all", bench.world * size, dtype)
        return move(bench, bench.data(name, size, dtype), sent, root)

    return BitsCase("moves", name, compute, moved=True, large=size * dtype.itemsize >= LARGE)


def move_cases(world: int) -> Iterator[BitsCase]:
    for call, move in (UNROOTED | ROOTED).items():
        for index, dtype in enumerate((*DTYPES, torch.int16)):
            for size in (1, 101):
                yield _move_case(call, move, dtype, size, index % world)
        yield _move_case(call, move, torch.float32, 0, 0)
        yield _move_case(call, move, torch.float32, 4097, 0)
        yield _move_case(call, move, torch.float32, (2 * MIB if world <= HUGE_WORLD // 2 else MIB // 2) + 1, 1)
    for call, move in ROOTED.items():
        for root in range(world):
            yield _move_case(call, move, torch.float32, 7, root)
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.complex64):

        def uneven(bench: Bench, dtype: torch.dtype = dtype) -> Result:
            gets = [(source + 2 * bench.rank) % 5 for source in range(bench.world)]
            gives = [(bench.rank + 2 * target) % 5 for target in range(bench.world)]
            output = torch.zeros(sum(gets), dtype=dtype)
            dist.all_to_all_single(output, bench.data(f"uneven {dtype}", sum(gives), dtype), gets, gives)
            return [output]

        def uneven_lists(bench: Bench, dtype: torch.dtype = dtype) -> Result:
            gets = [(source + 2 * bench.rank) % 5 for source in range(bench.world)]
            gives = [(bench.rank + 2 * target) % 5 for target in range(bench.world)]
            outputs = [torch.zeros(size, dtype=dtype) for size in gets]
            dist.all_to_all(
                outputs, list(torch.split_with_sizes(bench.data(f"uneven {dtype}", sum(gives), dtype), gives))
            )
            return outputs

        yield BitsCase("moves", f"uneven all_to_all_single {short_name(dtype)}", uneven, moved=True)
        yield BitsCase("moves", f"uneven all_to_all {short_name(dtype)}", uneven_lists, moved=True)
