"""Time on streams: only `torch.cuda._sleep` takes any so far, and one millisecond of it is `MS` cycles."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import simdist
from simdist.process import current_process
from tests.device.worlds import cuda, on_devices, values

MS = 1_755_000


def now_ms() -> float:
    process = current_process()
    assert process is not None
    return process.simulation.now_ns / 1e6


@on_devices
def test_work_on_a_stream_takes_no_time_of_the_rank() -> None:
    torch.cuda._sleep(3 * MS)
    after_call = now_ms()

    torch.cuda.synchronize()

    assert (after_call, now_ms()) == (0, 3)


@on_devices
def test_values_wait_for_the_current_stream() -> None:
    tensor = torch.ones(2, device="cuda")
    moments = []

    for read in (tensor.tolist, lambda: tensor.sum().item(), tensor.cpu, tensor.nonzero, lambda: bool(tensor.any())):
        torch.cuda._sleep(MS)
        tensor.add_(1)
        moments.append(now_ms())
        read()
    moments.append(now_ms())

    assert moments == [0, 1, 2, 3, 4, 5]


@on_devices
def test_a_copy_waits_unless_it_is_asked_not_to() -> None:
    target, pinned = torch.ones(2, device="cuda"), torch.ones(2).pin_memory()
    torch.cuda._sleep(MS)

    target.copy_(pinned, non_blocking=True)
    pinned.copy_(target, non_blocking=True)
    asked_not_to = now_ms()
    target.copy_(torch.ones(2))

    assert (asked_not_to, now_ms()) == (0, 1)


@on_devices
def test_streams_run_beside_each_other_and_wait_when_asked() -> None:
    side = torch.cuda.Stream()
    torch.cuda._sleep(2 * MS)
    with torch.cuda.stream(side):
        torch.cuda._sleep(3 * MS)
        current = torch.cuda.current_stream()

    torch.cuda.current_stream().synchronize()
    beside = now_ms()
    torch.cuda.current_stream().wait_stream(side)
    waited = now_ms()
    torch.cuda.current_stream().synchronize()

    assert current == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert (beside, waited, now_ms()) == (2, 2, 3)


@on_devices
def test_events_mark_what_a_stream_was_given() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    start.record()
    torch.cuda._sleep(2 * MS)
    end.record()
    torch.cuda._sleep(5 * MS)
    with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
        start.elapsed_time(end)
    asked = start.query(), end.query()
    end.synchronize()

    assert asked == (True, False)
    assert now_ms() == 2
    assert start.elapsed_time(end) == 2.0


@on_devices
def test_a_stream_waits_for_an_event_of_another_device() -> None:
    with torch.cuda.device(1):
        torch.cuda._sleep(4 * MS)
        event = torch.cuda.current_stream().record_event()

    torch.cuda.current_stream().wait_event(event)
    torch.cuda.synchronize(0)

    assert event.device == cuda(1)
    assert now_ms() == 4


@on_devices
def test_no_time_passes_between_events_of_two_devices() -> None:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for index, event in enumerate(events):
        with torch.cuda.device(index):
            event.record()

    with pytest.raises(torch.AcceleratorError, match="CUDA error: invalid resource handle"):
        events[0].elapsed_time(events[1])


@on_devices
def test_a_stream_can_be_entered_while_it_is_the_current_one() -> None:
    before, stream = torch.accelerator.current_stream(), torch.Stream()

    with stream, stream:
        inside = torch.accelerator.current_stream()

    assert inside == stream
    assert torch.accelerator.current_stream() == before != stream


@on_devices
def test_events_without_time_are_refused_in_torch_s_words() -> None:
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        torch.cuda.Event().elapsed_time(torch.cuda.Event())
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))
    assert torch.cuda.Event().query()


def test_priorities_are_those_that_torch_has_pools_for() -> None:
    def body() -> tuple[list[int], Any]:
        stream: Any = torch.cuda.Stream
        with pytest.raises(RuntimeError, match="Expected cuda stream priority to be less than or equal to 0, got 1"):
            stream(priority=1)
        return [stream(priority=asked).priority for asked in (0, -1, -3, -5)], stream.priority_range()

    assert values(body) == [([0, -1, -3, -3], (0, -3))]


@on_devices
def test_streams_are_torch_s_and_know_their_device() -> None:
    stream = torch.cuda.Stream(device=2, priority=-1)
    tensor = torch.ones(1, device="cuda")

    tensor.record_stream(stream)

    assert isinstance(stream, torch.Stream)
    assert isinstance(torch.cuda.Event(), torch.Event)
    assert (stream.device, stream.priority, stream.query()) == (cuda(2), -1, True)
    assert repr(stream) == "<torch.cuda.Stream device=cuda:2 cuda_stream=0x1>"
    assert torch.cuda.Stream(device=2) != stream
    assert {stream: 1}[stream] == 1


@on_devices
def test_backward_runs_on_the_stream_of_forward() -> None:
    side = torch.cuda.Stream()
    weight = torch.ones(2, device="cuda", requires_grad=True)
    seen = []
    with torch.cuda.stream(side):
        made = weight * 2
        made.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
        loss = made.sum()

    loss.backward()

    assert seen == [side]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@on_devices
def test_accelerators_of_any_kind_are_cuda() -> None:
    torch.accelerator.set_device_index(2)
    torch.cuda._sleep(MS)

    torch.accelerator.synchronize()

    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 4
    assert torch.accelerator.current_device_index() == torch.cuda.current_device() == 2
    assert torch.accelerator.current_stream() == torch.cuda.current_stream()
    assert now_ms() == 1


def test_a_rank_can_die_while_it_waits_for_a_value() -> None:
    def body() -> float:
        rank = int(os.environ["RANK"])
        tensor = torch.ones(2, device="cuda", requires_grad=True)
        torch.cuda._sleep(10 * MS)
        if rank == 0:
            tensor.register_hook(lambda gradient: gradient * gradient.sum().item())
            (tensor * 2).sum().backward()
        return float(tensor.detach().sum())

    cluster = simdist.cluster.build(2, devices_per_host=1)
    crash = simdist.faults.Crash(rank=0, at_ns=5_000_000)
    result = simdist.run(body, world_size=2, cluster=cluster, faults=[crash])

    assert [rank.status for rank in result.ranks] == ["killed", "returned"]
    assert [rank.ended_ns for rank in result.ranks] == [5_000_000, 10_000_000]


def test_each_rank_has_streams_of_its_own() -> None:
    def body() -> tuple[int, float]:
        process = current_process()
        assert process is not None
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(MS * (process.rank + 1))
            process.simulation.sleep(0)
            torch.cuda.current_stream().synchronize()
        return stream.stream_id, now_ms()

    assert values(body, world_size=2) == [(1, 1), (1, 2)]
