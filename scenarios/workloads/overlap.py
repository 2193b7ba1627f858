"""Operations under way at the same time."""

from __future__ import annotations

import torch
import torch.distributed as dist


def reduce_buckets(buckets: int, mib: float) -> dict[str, float]:
    """Issue all-reduces of `mib` MiB each without waiting in between."""
    dist.init_process_group()
    tensors = [torch.full((int(mib * 2**18),), float(index)) for index in range(buckets)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    total = float(sum(tensor[0] for tensor in tensors))
    dist.destroy_process_group()
    return {"total": total}
