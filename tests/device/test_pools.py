"""Memory pools are counted like all other memory, and snapshots add up to the statistics."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.device.worlds import cuda, on_devices

_cuda: Any = torch.cuda


@on_devices
def test_what_a_pool_gives_is_accounted() -> None:
    first, second = _cuda.MemPool(), _cuda.MemPool()
    before = torch.cuda.memory_allocated()

    with _cuda.use_mem_pool(first):
        tensor = torch.zeros(1000, device="cuda")
        inside = first.use_count()

    assert torch.cuda.memory_allocated() - before == 4096
    assert tensor.sum().item() == 0
    assert (first.id, second.id) == ((0, 1), (0, 2))
    assert (inside, first.use_count(), second.use_count()) == (2, 1, 1)
    assert first.snapshot() == []


def test_elsewhere_there_are_no_pools() -> None:
    with pytest.raises(RuntimeError, match=r"Tried to instantiate dummy base class MemPool|Found no NVIDIA driver"):
        _cuda.MemPool()


@on_devices
def test_a_snapshot_adds_up_to_the_statistics(tmp_path: Path) -> None:
    kept = [torch.zeros(1000, device=cuda(0)), torch.zeros(3 << 20, dtype=torch.uint8, device=cuda(1))]
    path = tmp_path / "snapshot.pickle"
    _cuda.memory._record_memory_history()
    _cuda.memory._dump_snapshot(str(path))

    found = pickle.loads(path.read_bytes())

    for index, segment in enumerate(found["segments"]):
        blocks = segment["blocks"]
        assert segment["device"] == index
        assert segment["total_size"] == torch.cuda.memory_reserved(index) == sum(block["size"] for block in blocks)
        assert segment["allocated_size"] == torch.cuda.memory_allocated(index) == blocks[0]["size"]
        assert [block["state"] for block in blocks] == ["active_allocated", "inactive"]
    assert len(found["segments"]) == len(kept)
    assert _cuda.memory_snapshot() == found["segments"]
