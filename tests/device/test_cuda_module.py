from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import simdist
from simdist.process import current_process
from tests.device.worlds import cuda, on_devices, values

_BUILT_FOR_CUDA = torch.version.cuda  # read outside worlds


@on_devices
def test_there_are_devices_and_nothing_has_begun() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert not torch.cuda.is_initialized()
    torch.ones(1, device="cuda")
    assert torch.cuda.is_initialized()


@on_devices
def test_to_choose_a_device_begins() -> None:
    with torch.cuda.device(-1):
        inside = torch.cuda.is_initialized()

    torch.cuda.set_device(1)

    assert not inside
    assert torch.cuda.is_initialized()


def test_the_settings_of_the_build_are_shown_with_devices_too() -> None:
    (shown,) = values(torch.__config__.show)
    assert "Build settings" in shown
    assert set(shown.splitlines()) <= set(torch.__config__.show().splitlines())  # also names a real GPU


def test_each_rank_begins_for_itself() -> None:
    def body() -> tuple[bool, bool]:
        process = current_process()
        assert process is not None
        if process.rank == 0:
            torch.ones(1, device="cuda")
        process.simulation.sleep(1)
        before = torch.cuda.is_initialized()
        torch.ones(1, device="cuda")
        return before, torch.cuda.is_initialized()

    assert values(body, world_size=2) == [(True, True), (False, True)]


def test_each_rank_has_a_current_device_of_its_own() -> None:
    def body() -> tuple[int, str]:
        process = current_process()
        assert process is not None
        torch.cuda.set_device(process.rank)
        process.simulation.sleep(1)
        with torch.cuda.device(3):
            inside = torch.ones(1, device="cuda").get_device()
        return inside, str(torch.ones(1, device="cuda").device)

    assert values(body, world_size=3) == [(3, "cuda:0"), (3, "cuda:1"), (3, "cuda:2")]


@on_devices
def test_a_device_has_properties() -> None:
    properties = torch.cuda.get_device_properties(1)

    assert torch.cuda.get_device_name(1) == properties.name == "simdist virtual GPU"
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor) == (9, 0)
    assert properties.total_memory == 80 << 30
    assert properties.multi_processor_count == 132
    assert torch.cuda.is_bf16_supported()
    assert torch.version.cuda == (_BUILT_FOR_CUDA or "13.0")
    assert torch.backends.cuda.is_built()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.backends.cudnn.is_available() == (_BUILT_FOR_CUDA is not None)
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(4)


@pytest.mark.parametrize(
    ("visible", "count", "first"),
    [("2", 1, 2), ("3,1", 2, 3), ("1,7,2", 1, 1), ("", 0, None), ("-1", 0, None), ("0,1,2,3,4", 4, 0)],
)
def test_the_environment_says_which_devices_are_seen(visible: str, count: int, first: int | None) -> None:
    kept: list[torch.Tensor] = []

    def body() -> tuple[int, bool, list[int]]:
        process = current_process()
        assert process is not None
        if process.rank == 0:  # sees all of them, and marks each by its own amount
            kept.extend(torch.empty((index + 1) << 21, dtype=torch.uint8, device=cuda(index)) for index in range(4))
            process.simulation.sleep(2)
            return 4, True, []
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        process.simulation.sleep(1)
        free = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
        return torch.cuda.device_count(), torch.cuda.is_available(), [((80 << 30) - each >> 21) - 1 for each in free]

    seen = values(body, world_size=2)[1]

    assert seen[:2] == (count, count > 0)
    assert seen[2][:1] == ([] if first is None else [first])


def test_a_process_that_sees_no_device_reads_it_in_torch_s_words() -> None:
    def body() -> None:
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.ones(1, device="cuda")

    values(body, env={"CUDA_VISIBLE_DEVICES": ""})


def test_a_rank_of_a_second_life_begins_anew() -> None:
    def body() -> int:
        process = current_process()
        assert process is not None
        assert not torch.cuda.is_initialized()
        kept = torch.ones(1 << 20, device="cuda")
        if process.life == 0:
            raise RuntimeError(f"again, with {kept.numel()}")
        return torch.cuda.memory_allocated()

    cluster = simdist.cluster.build(1, devices_per_host=1)
    result = simdist.run(body, world_size=1, cluster=cluster, max_restarts=1)

    assert result.values == [4 << 20]


def test_hosts_have_devices_of_their_own() -> None:
    def body() -> tuple[int, int]:
        rank = int(os.environ["LOCAL_RANK"])
        kept = torch.ones(1 << 20, device=cuda(rank))
        return torch.cuda.device_count(), torch.cuda.mem_get_info(1 - rank)[0] + kept.numel() * 0

    cluster = simdist.cluster.build(4, hosts=2, devices_per_host="ranks", device_memory_bytes=16 << 20)
    first, *_ = simdist.run(body, world_size=4, cluster=cluster).values

    assert first == (2, 16 << 20)


EarlyStream, EarlyEvent = torch.cuda.Stream, torch.cuda.Event
early_count = torch.cuda.device_count


@on_devices
def test_names_taken_before_the_world_find_devices() -> None:
    stream, event = EarlyStream(device=1), EarlyEvent(enable_timing=True)

    stream.record_event(event)

    assert isinstance(stream, torch.cuda.Stream)
    assert stream.device == cuda(1)
    assert event.elapsed_time(event) == 0
    assert early_count() == 4


@on_devices
def test_marks_for_a_profiler_are_taken() -> None:
    with torch.cuda.nvtx.range("outer"):
        depth = torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.mark("now")
        left = torch.cuda.nvtx.range_pop()

    assert (depth, left) == (-2, -2), "as where no profiler listens"


@on_devices
def test_the_runtime_library_answers() -> None:
    library = torch.cuda.cudart()

    torch.cuda.check_error(library.cudaProfilerStart())
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.cuda.check_error(2)
    assert library.cudaMemGetInfo(0)[1] == 80 << 30


def test_operations_for_which_the_host_waits_are_reported_where_asked() -> None:
    def reported(call: Callable[[], object]) -> str:
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        except RuntimeError as error:
            return str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return ""

    def body() -> tuple[list[str], list[str], int, list[str]]:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        stream = torch.cuda.current_stream()
        waits: list[Callable[[], object]] = [there[0].item, there.nonzero, there.cpu, here.cuda, stream.synchronize]
        waits.append(lambda: there[there > 0])
        goes_on: list[Callable[[], object]] = [there.sum, lambda: there @ there, torch.cuda.synchronize]
        goes_on.append(lambda: there.to("cpu", non_blocking=True))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            mode = torch.cuda.get_sync_debug_mode()
            there.sum().item()
            torch.cuda.set_sync_debug_mode(0)
            there.sum().item()
        return [*map(reported, waits)], [*map(reported, goes_on)], mode, [str(each.message) for each in seen]

    waiting, going_on, mode, warned = values(body)[0]

    assert waiting == ["called a synchronizing CUDA operation"] * 6
    assert going_on == [""] * 4
    assert (mode, warned) == (1, ["called a synchronizing CUDA operation"])


def assign(target: torch.Tensor, place: torch.Tensor, value: float | torch.Tensor) -> None:
    target[place] = value


# torch's `test_sync_warning` has these: whether the host waits depends on the index.
@on_devices
def test_the_host_waits_for_an_index_that_is_a_mask_or_its_own() -> None:
    there, one = torch.rand(4, device="cuda"), torch.rand((), device="cuda")
    numbers = torch.tensor([2, 0, 1], device="cuda")
    mask = numbers.new_tensor([1, 0, 1, 1], dtype=torch.bool)
    mask_here, numbers_here = mask.cpu(), numbers.cpu()
    repeats = torch.tensor([2, 1, 1, 1], device="cuda")
    waits: dict[str, Callable[[], object]] = {
        "mask": lambda: there[mask],
        "numbers on the host": lambda: there[numbers_here],
        "a tensor for a mask": lambda: assign(there, mask, one),
        "assigned by the host's numbers": lambda: assign(there, numbers_here, one),
        "repeats of any sum": lambda: torch.repeat_interleave(there, repeats),
    }
    goes_on: dict[str, Callable[[], object]] = {
        "numbers": lambda: there[numbers],
        "mask on the host": lambda: there[mask_here],
        "a number for a mask": lambda: assign(there, mask, 1.0),
        "a tensor for the host's mask": lambda: assign(there, mask_here, one),
        "a tensor for numbers": lambda: assign(there, numbers, one),
        "repeats of a known sum": lambda: torch.repeat_interleave(there, repeats, output_size=5),
    }

    def is_reported(call: Callable[[], object]) -> bool:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            call()
            torch.cuda.set_sync_debug_mode("default")
        return bool(seen)

    assert [name for name, call in waits.items() if not is_reported(call)] == []
    assert [name for name, call in goes_on.items() if is_reported(call)] == []


def test_only_devices_that_are_used_have_a_context() -> None:
    def body() -> list[list[bool]]:
        core: Any = torch._C
        has = core._cuda_hasPrimaryContext
        found = [[has(index) for index in range(3)]]
        torch.ones(1, device="cuda:1").cpu()
        torch.cuda.set_device(2)
        return [*found, [has(index) for index in range(3)]]

    assert values(body) == [[[False] * 3, [False, True, True]]]


@on_devices
def test_a_profiler_may_be_asked_for_devices_alone() -> None:
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA]) as profiler:
        torch.ones(2, device="cuda").sum()

    assert torch.profiler.supported_activities() == {kinds.CPU, kinds.CUDA}
    assert "aten::sum" in {event.key for event in profiler.key_averages()}
