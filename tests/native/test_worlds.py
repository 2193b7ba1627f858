"""Worlds with the native folds and without: the same values, the same digests."""

from __future__ import annotations

import zlib
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.native import _folds

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
SIZES = (1, 1000, 20_001)


def tensors(rank: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.randn(size, generator=generator)
    if size == 1000:
        drawn[500] = float("nan")
    return drawn.nan_to_num().to(dtype) if dtype in (torch.int64, torch.bool) else drawn.to(dtype)


def everything(backend: str) -> list[int]:
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
        device = "cuda"
    sums = []

    def note(tensor: torch.Tensor) -> None:
        whole = tensor.cpu().contiguous()
        words = (torch.view_as_real(whole) if whole.is_complex() else whole).view(torch.uint8)
        sums.append(zlib.crc32(words.numpy().tobytes()))

    for dtype in DTYPES if backend == "gloo" else DTYPES[:-1]:
        for size in SIZES:
            real = dtype not in (torch.bool, torch.complex64)
            for op in (dist.ReduceOp.SUM, *((dist.ReduceOp.MAX, dist.ReduceOp.MIN) if real else ())):
                tensor = tensors(rank, dtype, size).to(device)
                dist.all_reduce(tensor, op)
                note(tensor)
            tensor = tensors(rank, dtype, size).to(device)
            dist.reduce(tensor, 1)
            note(tensor)
            whole = tensors(rank, dtype, size * ranks).to(device)
            output = torch.zeros(size, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(output, whole)
            note(output)
            dist.reduce_scatter(output, list(whole.chunk(ranks)))
            note(output)
            gathered = torch.zeros(size * ranks, dtype=dtype, device=device)
            dist.all_gather_into_tensor(gathered, output)
            note(gathered)
            dist.all_to_all_single(gathered, whole)
            note(gathered)
            own = whole[rank * size : (rank + 1) * size]  # a part of the reduced tensor
            dist.reduce_scatter_tensor(own, whole, dist.ReduceOp.AVG if dtype.is_floating_point else dist.ReduceOp.SUM)
            note(whole)
            if not dtype.is_floating_point:
                continue
            parts = [torch.zeros(size, dtype=dtype, device=device) for _ in range(ranks)]
            dist.gather(output, parts if rank == 1 else None, 1)
            dist.scatter(output, parts[::-1] if rank == 1 else None, 1)
            dist.broadcast(output, 2)
            note(output)
    dist.destroy_process_group()
    return sums


@pytest.mark.filterwarnings("ignore:.torch.distributed:FutureWarning")
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_values_and_digests_are_the_same(native: ModuleType, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for module in (native, None):
        monkeypatch.setattr(_folds, "module", module)
        cluster = build(3, devices_per_host=3) if backend == "nccl" else None
        runs.append(simdist.run(everything, world_size=3, args=(backend,), cluster=cluster))
        runs[-1].raise_for_failure()

    with_them, without = runs
    assert with_them.values == without.values
    assert with_them.digest == without.digest
