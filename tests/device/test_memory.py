from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.device._memory import Account
from simdist.process import current_process
from tests.device.worlds import cuda, on_devices, values

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(autouse=True)
def quick_looks(request: pytest.FixtureRequest) -> None:
    """Make collections fast: a device without memory collects garbage."""
    if request.function is not test_when_garbage_goes_does_not_depend_on_what_the_process_did_before:
        request.getfixturevalue("small_heap")


@on_devices
def test_memory_is_counted_where_it_is_and_given_back() -> None:
    before = torch.cuda.memory_allocated(1)

    tensor = torch.empty(MIB, device=cuda(1))
    while_there = torch.cuda.memory_allocated(1)
    view = tensor[1:]
    del tensor
    with_view = torch.cuda.memory_allocated(1)
    del view

    assert while_there - before == 4 * MIB
    assert with_view == while_there
    assert torch.cuda.memory_allocated(1) == before
    assert torch.cuda.memory_allocated(0) == 0


@on_devices
def test_a_small_tensor_takes_a_block() -> None:
    tensors = [torch.ones(1, device=cuda(1)) for _ in range(3)]

    assert torch.cuda.memory_allocated(1) == 3 * 512
    assert torch.cuda.memory_reserved(1) == 2 * MIB
    assert torch.cuda.memory_stats(1)["allocation.all.current"] == len(tensors)


@on_devices
def test_the_peak_stays_until_it_is_reset() -> None:
    torch.empty(MIB, device=cuda(1))

    assert torch.cuda.max_memory_allocated(1) == 4 * MIB
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) == 0
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.allocated"] == 4 * MIB
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.freed"] == 4 * MIB


@on_devices
def test_what_is_freed_stays_reserved_until_the_cache_is_emptied() -> None:
    torch.empty(8 * MIB, dtype=torch.uint8, device=cuda(1))
    free, total = torch.cuda.mem_get_info(1)

    torch.cuda.empty_cache()

    assert (free, total) == (80 * GIB - 8 * MIB, 80 * GIB)
    assert torch.cuda.memory_reserved(1) == 0
    assert torch.cuda.mem_get_info(1) == (80 * GIB, 80 * GIB)
    assert "simdist" not in torch.cuda.memory_summary(1)


@on_devices
def test_backward_keeps_no_memory() -> None:
    weight = torch.ones(MIB, device=cuda(1), requires_grad=True)

    (weight * weight).exp().sum().backward()
    weight.grad = None

    assert torch.cuda.memory_allocated(1) == 4 * MIB
    assert torch.cuda.max_memory_allocated(1) >= 12 * MIB


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.empty(1 << 38, device=cuda(1), dtype=torch.uint8),
        lambda: torch.empty_strided((2, 1 << 37), (1 << 37, 1), device=cuda(1), dtype=torch.uint8),
        lambda: torch.zeros(1 << 36, device=cuda(1)),
    ],
)
@on_devices
def test_what_does_not_fit_is_refused_in_torch_s_words(ask: Callable[[], torch.Tensor]) -> None:
    keep = torch.empty(3 * MIB, device=cuda(1), dtype=torch.uint8)

    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        ask()

    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 256.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 80.00 GiB "
        "is free. Including non-PyTorch memory, this process has 4.00 MiB memory in use. Of the allocated memory "
        "3.00 MiB is allocated by PyTorch, and 1024.00 KiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    assert torch.cuda.memory_stats(1)["num_ooms"] == 1
    assert keep.numel() == 3 * MIB


def test_a_device_has_what_the_cluster_gives_it() -> None:
    def body() -> list[str]:
        assert torch.cuda.get_device_properties(0).total_memory == 16 * MIB
        kept = [torch.empty(MIB, device="cuda") for _ in range(4)]
        outcomes = []
        for _ in range(2):
            try:
                kept.append(torch.empty(1, device="cuda"))
                outcomes.append("fits")
            except torch.cuda.OutOfMemoryError:
                outcomes.append("full")
            kept.pop()
        return outcomes

    assert values(body, memory=16 * MIB) == [["full", "fits"]]


def test_a_result_that_does_not_fit_is_refused_inside_backward() -> None:
    def body() -> None:
        weight = torch.ones(MIB, device="cuda", requires_grad=True)
        loss = (weight * 2).sum()
        kept = torch.empty(2 * MIB, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            (loss + kept.sum()).backward()

    values(body, memory=14 * MIB)


def test_ranks_on_one_device_share_its_memory() -> None:
    def body() -> str:
        process = current_process()
        assert process is not None
        kept = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda:0")
        process.simulation.sleep(1)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            torch.empty(6 * MIB, dtype=torch.uint8, device="cuda:0")
        process.simulation.sleep(1)
        return f"{len(kept)}: {caught.value}"

    first, second = values(body, world_size=2, devices=1, memory=16 * MIB)

    for index, text in enumerate((first, second)):
        assert (
            "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 MiB of which 4.00 MiB is free. " in text
        )
        assert f"Process {1001 - index} has 6.00 MiB memory in use. " in text
        assert "Including non-PyTorch memory, this process has 6.00 MiB memory in use. " in text


def test_a_process_that_ends_gives_its_memory_back() -> None:
    kept = []

    def body() -> int:
        process = current_process()
        assert process is not None
        if process.rank == 1:
            kept.append(torch.empty(6 * MIB, dtype=torch.uint8, device="cuda:0"))
            return 0
        process.simulation.sleep(1)
        return torch.cuda.mem_get_info(0)[0]

    assert values(body, world_size=2, devices=1, memory=16 * MIB) == [16 * MIB, 0]


def test_a_machine_without_memory_is_a_device_without_memory() -> None:
    def body() -> None:
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            torch.empty(1 << 54, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty_strided((1 << 54,), (1,), dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.ones(1, device="cuda").expand(1 << 52) + 1
        assert caught.value.__notes__ == [
            "the memory of the machine that simulates ran out, not that of the virtual device"
        ]

    values(body, memory=1 << 60)


@on_devices
def test_a_process_can_allow_itself_a_part() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5, 1)

    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"40\.00 GiB allowed; Of the allocated memory 0 bytes"):
        torch.empty(41 * GIB, dtype=torch.uint8, device=cuda(1))
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.5


@on_devices
def test_a_storage_that_is_resized_to_nothing_is_not_counted() -> None:
    tensor = torch.ones(MIB, device=cuda(1))
    storage = tensor.untyped_storage()

    storage.resize_(0)
    empty = storage.size(), torch.cuda.memory_allocated(1)
    storage.resize_(4 * MIB)

    assert empty == (0, 0)
    assert (storage.nbytes(), torch.cuda.memory_allocated(1)) == (4 * MIB, 4 * MIB)
    del tensor, storage
    gc.collect()
    assert torch.cuda.memory_allocated(1) == 0


@on_devices
def test_memory_can_be_had_by_address() -> None:
    address = torch.cuda.caching_allocator_alloc(1000, cuda(1))

    assert torch.cuda.memory_allocated(1) == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(1) == 0


@on_devices
def test_garbage_that_goes_while_more_is_reserved_is_counted_as_gone() -> None:
    reserve = Account._reserve

    def reserve_and_collect(self: Account, used: int, size: int) -> None:
        reserve(self, used, size)
        gc.collect()  # as the collector may run at any time

    tensor = torch.ones(4 * MIB, device=cuda(1))
    garbage: list[object] = [torch.empty(MIB, device=cuda(1))]
    garbage.append(garbage)
    del garbage
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Account, "_reserve", reserve_and_collect)
        result = tensor + tensor

    assert torch.cuda.memory_allocated(1) == 32 * MIB
    del tensor, result
    assert torch.cuda.memory_allocated(1) == 0


def test_when_garbage_goes_does_not_depend_on_what_the_process_did_before() -> None:
    def leaves_cycles() -> tuple[int, int]:
        dist.init_process_group("gloo")
        for _ in range(200):
            held: list[object] = [torch.ones(16_384, device="cuda")]
            held.append(held)
            dist.all_reduce(torch.ones(1))
        return torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()

    found = []
    thresholds = gc.get_threshold()
    for first in (thresholds[0], 20):
        gc.set_threshold(first, *thresholds[1:])
        try:
            found.append(values(leaves_cycles, world_size=2))
        finally:
            gc.set_threshold(*thresholds)

    assert found[0] == found[1]
    peak, left = found[0][0]
    assert left < peak < 190 * 65_536


def test_garbage_goes_before_memory_is_refused() -> None:
    def fills() -> int:
        for _ in range(16):
            held: list[object] = [torch.ones(MIB, device="cuda")]
            held.append(held)
        ooms: int = torch.cuda.memory_stats()["num_ooms"]
        return ooms

    assert values(fills, world_size=2, memory=32 * MIB) == [0, 0]


def test_who_observes_that_memory_runs_out_is_called_before_the_error() -> None:
    def body() -> tuple[list[Any], str]:
        seen: list[Any] = []
        attach: Any = vars(torch._C)["_cuda_attach_out_of_memory_observer"]
        attach(lambda *what: seen.append((*what, len(seen))))
        torch.empty(MIB, dtype=torch.uint8, device=cuda(1))
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(GIB + 1, dtype=torch.uint8, device=cuda(1))
        try:
            attach(lambda *_: 1 // 0)
            torch.empty(GIB + 1, dtype=torch.uint8, device=cuda(1))
        except ZeroDivisionError as error:
            return seen, str(error)
        return seen, ""

    ((seen, error),) = values(body, memory=GIB)

    asked = GIB + 2 * MIB
    assert seen == [(1, asked, GIB, GIB - 2 * MIB, 0), (1, asked, GIB, GIB - 2 * MIB, 1)]
    assert error.endswith("by zero")


@pytest.mark.parametrize("count", [3, 1 << 20])
@on_devices
def test_memory_that_nobody_has_written_is_zero(count: int) -> None:
    for _ in range(4):
        torch.full((count,), 7.0, device=cuda(1))

        assert torch.empty(count, device=cuda(1)).count_nonzero() == 0
        assert torch.empty_strided((count, 1), (1, count), device=cuda(1)).count_nonzero() == 0


@on_devices
def test_memory_that_nobody_has_written_is_no_number_where_torch_says_so() -> None:
    torch.use_deterministic_algorithms(True)

    assert torch.empty(3, device=cuda(1)).isnan().all()


@on_devices
def test_the_allocator_refuses_a_device_that_is_not_there() -> None:
    torch.ones(1, device=cuda())

    with pytest.raises(RuntimeError, match=re.escape("Invalid device argument \x07: did you call init?")):
        torch.cuda.memory_allocated(7)


@on_devices
def test_each_return_of_unused_memory_is_counted() -> None:
    torch.cuda.init()
    before = torch.cuda.memory_stats()["num_sync_all_streams"]

    torch.cuda.empty_cache()
    torch.cuda.empty_cache()

    assert torch.cuda.memory_stats()["num_sync_all_streams"] == before + 2
