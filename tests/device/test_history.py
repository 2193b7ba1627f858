"""The history of a device's memory: allocations and frees since the recording began, and their lines."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz as viz

from tests.device.worlds import on_devices, values

_cuda: Any = torch.cuda
_viz: Any = viz
MIB = 1 << 20


def actions(found: Any, device: int = 0) -> list[tuple[str, int]]:
    return [(entry["action"], entry["size"]) for entry in found["device_traces"][device]]


@on_devices
def test_what_is_allocated_and_freed_is_reported_in_order() -> None:
    before = torch.zeros(1000, device="cuda")
    _cuda.memory._record_memory_history()
    first = torch.empty(1000, device="cuda")
    second = first + before
    first.add_(1)  # allocates nothing
    part = second[:10]
    del first
    third = torch.zeros(2000, device="cuda")
    del second, part, third
    torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda:1")

    found = _cuda.memory._snapshot()

    freed = [("free_requested", 4096), ("free_completed", 4096)]
    expected = [("alloc", 4096), ("alloc", 4096), *freed, ("alloc", 8192), *freed]
    assert actions(found) == [*expected, ("free_requested", 8192), ("free_completed", 8192), ("snapshot", 0)]
    assert actions(found, 1)[:2] == [("segment_alloc", 4 * MIB), ("alloc", 3 * MIB)]
    one, two, _, _, three, *_ = [entry["addr"] for entry in found["device_traces"][0]]
    assert (two - one, three - two) == (4096, 4096), "the first place is too small for the third"
    assert {each["stream"] for each in found["device_traces"][0]} == {0}
    assert before.sum().item() == 0


@on_devices
def test_blocks_have_the_lines_that_allocated_them(tmp_path: Path) -> None:
    kept = torch.zeros(1000, device="cuda")
    _cuda.memory._record_memory_history()
    gone = torch.ones(100, device="cuda")
    weight = torch.ones(1000, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    del gone
    path = tmp_path / "snapshot.pickle"
    _cuda.memory._dump_snapshot(str(path))

    found = pickle.loads(path.read_bytes())

    (segment,) = found["segments"]
    blocks = segment["blocks"]
    assert sum(block["size"] for block in blocks) == torch.cuda.memory_reserved()
    active = [block for block in blocks if block["state"] == "active_allocated"]
    assert sum(block["size"] for block in active) == torch.cuda.memory_allocated() == segment["allocated_size"]
    assert active[0] == {**active[0], "size": 4096, "frames": []}, "what was there before"
    names = {frame["name"] for block in active[1:] for frame in block["frames"]}
    assert "test_blocks_have_the_lines_that_allocated_them" in names
    frames = _cuda.memory._allocation_traceback(weight.untyped_storage().data_ptr())
    assert frames[0]["filename"] == __file__
    assert _cuda.memory._allocation_traceback(kept.untyped_storage().data_ptr()) is None
    assert "alloc" in _viz.trace(found)
    assert "total_reserved" in _viz.segsum(found)


@on_devices
def test_frames_are_kept_as_far_as_they_are_asked_for() -> None:
    found = {}
    for context in (None, "state", "alloc", "all"):
        _cuda.memory._record_memory_history(context=context, clear_history=True)
        tensor = torch.ones(10, device="cuda")
        state = _cuda.memory._snapshot()
        del tensor
        trace = _cuda.memory._snapshot()["device_traces"][0]
        in_blocks = any(block["frames"] for segment in state["segments"] for block in segment["blocks"])
        found[context] = in_blocks, ["frames" in entry for entry in trace if entry["action"] != "segment_alloc"][:2]
        reported = [entry for entry in trace if "frames" in entry and entry["action"] in ("alloc", "free_requested")]
        lines = {entry["frames"][0]["line"] for entry in reported}
        assert len(lines) == {"alloc": 1, "all": 2}.get(str(context), 0), "what frees has a line of its own with all"

    assert found == {
        None: (False, [False, False]),
        "state": (True, [False, False]),
        "alloc": (True, [True, True]),
        "all": (True, [True, True]),
    }


@on_devices
def test_a_history_has_as_many_entries_and_the_kinds_that_are_asked_for() -> None:
    _cuda.memory._record_memory_history(max_entries=3, skip_actions=["free_requested", "snapshot"])
    for _ in range(4):
        torch.ones(10, device="cuda")
    few = actions(_cuda.memory._snapshot())
    _cuda.memory._record_memory_history("state")
    torch.ones(10, device="cuda")
    one = actions(_cuda.memory._snapshot())
    _cuda.memory._record_memory_history(None)
    torch.ones(10, device="cuda")

    assert few == [("free_completed", 512), ("alloc", 512), ("free_completed", 512)]
    assert one == [("snapshot", 0)]
    assert actions(_cuda.memory._snapshot()) == []


@pytest.mark.usefixtures("small_heap")
@on_devices
def test_resized_storages_and_memory_that_is_not_there_are_reported() -> None:
    _cuda.memory._record_memory_history(skip_actions=["free_requested"])
    tensor = torch.ones(MIB, device="cuda")
    storage = tensor.untyped_storage()
    storage.resize_(0)
    storage.resize_(4 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()

    size = 4 * MIB
    expected = [("alloc", size), ("free_completed", size), ("alloc", size), ("oom", 1 << 45)]
    found = [each for each in actions(_cuda.memory._snapshot()) if not each[0].startswith("s")]
    assert found == expected


def test_each_rank_has_a_history_of_its_own_and_it_is_the_same_in_each_run() -> None:
    def body() -> list[Any]:
        torch.cuda.set_device(0)
        if torch.cuda.current_device() == 0:
            _cuda.memory._record_memory_history(context=None)
        tensor = torch.ones(10, device="cuda") * 2
        del tensor
        return list(_cuda.memory._snapshot()["device_traces"][0])

    first, second = values(body, world_size=2), values(body, world_size=2)

    assert first == second
    assert [entry["action"] for entry in first[0]][:2] == ["segment_alloc", "alloc"]


@on_devices
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"enabled": "some"}, "expected state to be 'state', 'all', or None"),
        ({"context": "some"}, "expected context to be 'state', 'alloc', 'all', or None"),
        ({"stacks": "some"}, "expected stacks to be 'python', or 'all'"),
    ],
)
def test_other_words_are_refused_in_torch_s(settings: dict[str, str], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        _cuda.memory._record_memory_history(**settings)
