"""Races between streams in a strict world: planted ones are found, with both lines, and none in correct programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.cluster import build
from simdist.errors import StrictError
from tests.c10d.nccl.worlds import join, of, results, run

_stream: Any = torch.cuda.Stream
_event: Any = torch.cuda.Event
_current: Any = torch.cuda.current_stream
_on: Any = torch.cuda.stream


def side_of(value: torch.Tensor) -> Any:
    """Return a stream that waits for all work on the current one so far."""
    del value
    side = _stream()
    side.wait_stream(_current())
    return side


def launched() -> tuple[torch.Tensor, Any]:
    """Begin an all_reduce; returns its tensor and work."""
    tensor = of(1, 2, 3)
    return tensor, dist.all_reduce(tensor, async_op=True)


# Correct programs; without the flag each leaves something out, which plants a race.


def read_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    doubled = tensor * 2
    work.wait()
    return doubled


def write_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    tensor.zero_()
    work.wait()


def input_changed_after_wait(right: bool) -> Any:
    tensor, whole = of(1), torch.empty(2, device="cuda")
    group: Any = dist.group.WORLD
    work = group._allgather_base(whole, tensor)
    if right:
        work.wait()
    tensor.add_(1)
    work.wait()


def input_read_before_wait(right: bool) -> Any:
    tensor, whole = of(1), torch.empty(2, device="cuda")
    group: Any = dist.group.WORLD
    work = group._allgather_base(whole, tensor)
    doubled = (tensor if right else whole) * 2
    work.wait()
    return doubled


def value_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    value = tensor.sum().item()
    work.wait()
    return value


def copied_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    other = tensor.cpu()
    work.wait()
    return other


def filled_by_copy_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    tensor.copy_(torch.ones(3))
    work.wait()


def synchronized(right: bool) -> Any:
    tensor, work = launched()
    if right:
        torch.cuda.synchronize()
    doubled = tensor + 1
    work.wait()
    return doubled


def view_after_wait(right: bool) -> Any:
    tensor, work = launched()
    if right:
        work.wait()
    part = tensor[1:].view(2, 1) + 1
    work.wait()
    return part


def message_after_wait(right: bool) -> Any:
    tensor = of(1)
    rank = dist.get_rank()
    operations = [dist.P2POp(dist.isend, of(rank), 1 - rank), dist.P2POp(dist.irecv, tensor, 1 - rank)]
    (work,) = dist.batch_isend_irecv(operations)
    if right:
        work.wait()
    doubled = tensor * 2
    work.wait()
    return doubled


def future_after_wait(right: bool) -> Any:
    tensor, work = launched()
    future = work.get_future()
    if right:
        future.wait()
    doubled = tensor * 2
    future.wait()
    return doubled


def two_works_after_both(right: bool) -> Any:
    group = dist.new_group([0, 1])
    tensor, first = launched()
    if right:
        first.wait()
    second: Any = dist.all_reduce(tensor, async_op=True, group=group)
    first.wait()
    second.wait()


def side_stream_waits_for_the_main_one(right: bool) -> Any:
    value = of(1) * 2
    side = side_of(value) if right else _stream()
    with _on(side):
        value.add_(1)
    torch.cuda.synchronize()


def main_stream_waits_for_the_side_one(right: bool) -> Any:
    value = of(1)
    side = side_of(value)
    with _on(side):
        value.add_(1)
    if right:
        _current().wait_stream(side)
    return value * 2


def event_between(right: bool) -> Any:
    value = of(1)
    side, event = side_of(value), _event()
    with _on(side):
        value.add_(1)
        event.record()
    if right:
        event.wait()
    return value * 2


def event_recorded_behind(right: bool) -> Any:
    value = of(1)
    side, event = side_of(value), _event()
    with _on(side):
        if not right:
            event.record()
        value.add_(1)
        if right:
            event.record()
    event.wait()
    return value * 2


def event_synchronized(right: bool) -> Any:
    value = of(1)
    side, event = side_of(value), _event()
    with _on(side):
        value.add_(1)
        event.record()
    if right:
        event.synchronize()
    return value * 2


def stream_synchronized(right: bool) -> Any:
    value = of(1)
    side = side_of(value)
    with _on(side):
        value.add_(1)
    if right:
        side.synchronize()
    return value * 2


def readers_before_a_writer(right: bool) -> Any:
    value = of(1)
    side = side_of(value)
    with _on(side):
        read = value * 2
    if right:
        _current().wait_stream(side)
    value.zero_()
    torch.cuda.synchronize()
    return read


def three_streams(right: bool) -> Any:
    value = of(1)
    first, second = side_of(value), _stream()
    with _on(first):
        value.add_(1)
    if right:
        second.wait_stream(first)
    with _on(second):
        value.mul_(2)
    torch.cuda.synchronize()
    return value


def launched_from_a_side_stream(right: bool) -> Any:
    value = of(1)
    side = side_of(value)
    with _on(side):
        value.add_(1)
    if right:
        _current().wait_stream(side)
    work: Any = dist.all_reduce(value, async_op=True)
    work.wait()
    torch.cuda.synchronize()


def pinned_source_changed(right: bool) -> Any:
    batch, there = torch.ones(4).pin_memory(), torch.empty(4, device="cuda")
    there.copy_(batch, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    batch.fill_(2)
    torch.cuda.synchronize()


def pinned_batch_reused(right: bool) -> Any:
    batch = torch.ones(2, 3).pin_memory()
    first = batch.to("cuda", non_blocking=True)
    copied = _event()
    copied.record()
    if right:
        copied.synchronize()
    batch[0] = 5
    return first.sum().item()


def pinned_source_added_to_on_a_side_stream(right: bool) -> Any:
    batch, there = torch.ones(4).pin_memory(), torch.empty(4, device="cuda")
    side = side_of(there)
    with _on(side):
        there.copy_(batch, non_blocking=True)
    (side if right else _current()).synchronize()
    batch += 1
    torch.cuda.synchronize()


def pinned_result_read(right: bool) -> Any:
    value, here = of(1, 2), torch.zeros(2, pin_memory=True)
    here.copy_(value, non_blocking=True)
    if right:
        _current().synchronize()
    total = here.sum()
    torch.cuda.synchronize()
    return total


def host_copy_read(right: bool) -> Any:
    here = (of(1, 2) * 2).to("cpu", non_blocking=True)
    if right:
        torch.cuda.synchronize()
    numbers = here.tolist()
    torch.cuda.synchronize()
    return numbers


def pinned_result_written_into_a_view(right: bool) -> Any:
    value, here = of(1, 2), torch.zeros(2, 2, pin_memory=True)
    here[1].copy_(value, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    torch.add(here[0], 1, out=here[0])
    torch.cuda.synchronize()


PROGRAMS: list[Callable[[bool], Any]] = [
    *(read_after_wait, write_after_wait, input_changed_after_wait, input_read_before_wait, value_after_wait),
    *(copied_after_wait, filled_by_copy_after_wait, synchronized, view_after_wait, message_after_wait),
    *(future_after_wait, two_works_after_both, side_stream_waits_for_the_main_one),
    *(main_stream_waits_for_the_side_one, event_between, event_recorded_behind, event_synchronized),
    *(stream_synchronized, readers_before_a_writer, three_streams, launched_from_a_side_stream),
]
WITH_HOST: list[Callable[[bool], Any]] = [
    *(pinned_source_changed, pinned_batch_reused, pinned_source_added_to_on_a_side_stream, pinned_result_read),
    *(host_copy_read, pinned_result_written_into_a_view),
]


# Programs in which a stream frees memory that another may still use; the flag says how the program keeps it.


def prefetched(kept: str) -> Any:
    side, total = _stream(), of(0, 0)
    for _ in range(3):
        if kept == "by waiting":
            side.wait_stream(_current())
        with _on(side):
            batch = torch.ones(2, device="cuda")
        _current().wait_stream(side)
        if kept == "by record_stream":
            batch.record_stream(_current())
        total.add_(batch)
        if kept == "by synchronize":
            torch.cuda.synchronize()
        if kept == "by an event":
            _current().record_event().wait(side)
        del batch
    return total


def reduced_and_freed(kept: str) -> Any:
    tensor, work = launched()
    del tensor, kept
    made = of(1, 2, 3)
    work.wait()
    return made


def freed_in_backward(kept: str) -> Any:
    del kept
    side, weight = _stream(), of(1, 2, 3).requires_grad_()
    for _ in range(2):
        side.wait_stream(_current())
        with _on(side):
            middle = (weight * 2).exp()
        _current().wait_stream(side)
        middle.sum().backward()
        del middle
    return weight.grad


def play(program: Callable[[Any], Any], right: bool | str) -> None:
    """Run a program on a rank."""
    join()
    dist.all_reduce(of(1))
    program(right)
    dist.destroy_process_group()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_planted_race_is_found_with_both_lines(program: Callable[[bool], Any]) -> None:
    result = run(play, args=[program, False], strict=True)

    error = result.ranks[0].exception
    assert type(error) is StrictError
    lines = re.findall(r"at test_races.py:\d+ in (\w+)", str(error))
    assert len(lines) == 2
    assert lines[0] == program.__name__
    assert "may not be over; wait for it first" in str(error)


@pytest.mark.parametrize("program", WITH_HOST, ids=lambda each: each.__name__)
def test_pinned_memory_that_changes_under_a_copy_is_found_with_both_lines(program: Callable[[bool], Any]) -> None:
    result = run(play, args=[program, False], strict=True)

    error = result.ranks[0].exception
    assert type(error) is StrictError, error
    lines = re.findall(r"at test_races.py:(\d+) in (\w+)", str(error))
    assert [name for _, name in lines] == [program.__name__] * 2
    assert int(lines[0][0]) > int(lines[1][0])
    assert "in pinned memory, while" in str(error)
    assert "may not be over; synchronize first" in str(error)


def test_the_programs_own_modes_keep_their_order() -> None:
    def body() -> Any:
        batch = torch.ones(2).pin_memory()
        with torch.device("cuda"):
            batch.to("cuda", non_blocking=True)
            made = torch.zeros(1)
        torch.cuda.synchronize()
        batch.zero_()
        return made.device.type, torch.zeros(1).device.type, batch.tolist()

    assert results(body, 1, strict=True) == [("cuda", "cpu", [0.0, 0.0])]


@pytest.mark.parametrize("program", [*PROGRAMS, *WITH_HOST], ids=lambda each: each.__name__)
def test_a_correct_program_is_not_blamed(program: Callable[[bool], Any]) -> None:
    results(play, args=[program, True], strict=True)


def test_memory_that_is_freed_while_another_stream_uses_it() -> None:
    result = run(play, args=[prefetched, ""], strict=True)

    error = result.ranks[0].exception
    assert type(error) is StrictError
    assert re.findall(r"at test_races.py:\d+ in (\w+)", str(error)) == ["prefetched", "prefetched"]
    assert "takes freed memory for a tensor of shape [2] on stream " in str(error)
    assert ", which uses it on the default stream of cuda:0, may not be over; call record_stream" in str(error)


@pytest.mark.parametrize("kept", ["by waiting", "by record_stream", "by synchronize", "by an event"])
def test_memory_that_is_kept_until_the_other_stream_is_done(kept: str) -> None:
    results(play, args=[prefetched, kept], strict=True)


@pytest.mark.parametrize("program", [reduced_and_freed, freed_in_backward], ids=lambda each: each.__name__)
def test_memory_that_torch_itself_keeps(program: Callable[[str], Any]) -> None:
    results(play, args=[program, ""], strict=True)


def test_memory_whose_own_stream_is_not_known_is_left_alone() -> None:
    def body() -> float:
        kept, total = before, of(0, 0)
        side = _stream()
        for tensor in kept:
            with _on(side):
                tensor.add_(1)  # the first time that the world sees it
            _current().wait_stream(side)
            total.add_(tensor)
        del tensor
        kept.clear()
        with _on(side):
            torch.ones(2, device="cuda")
        torch.cuda.synchronize()
        return float(total.sum().item())

    before = run(lambda: [of(1, 2)], 1).values[0]

    assert results(body, 1, strict=True) == [5.0]


def test_without_strict_nobody_looks() -> None:
    for program in PROGRAMS[:2]:
        assert run(play, args=[program, False]).ok


@pytest.mark.parametrize("strict", [True, False])
def test_a_copy_to_another_device_is_in_order_with_both_streams(strict: bool) -> None:
    """The copy runs on the source's stream and waits for the target's, which then waits for the copy."""

    def body() -> float:
        here, there = torch.ones(3, device="cuda:0"), torch.empty(3, device="cuda:1")
        with torch.cuda.device(1):
            there.fill_(1)
            there.copy_(here)
            there.add_(1)
            here.copy_(there)
            there.zero_()
            moved = here.to("cuda:1")
            moved.add_(1)
        here.add_(moved.to("cuda:0"))
        return here.sum().item()

    settings: dict[str, Any] = {"strict": True} if strict else {"judges": ["races"]}
    result = run(body, 1, cluster=build(1, devices_per_host=2), **settings)

    assert (result.values, result.findings) == ([15.0], ())


def test_a_copy_to_another_device_races_with_other_streams() -> None:
    def body() -> None:
        here, there = torch.ones(3, device="cuda:0"), torch.empty(3, device="cuda:1")
        there.copy_(here)
        with torch.cuda.stream(torch.cuda.Stream(1)):
            there.add_(1)

    result = run(body, 1, cluster=build(1, devices_per_host=2), strict=True)

    assert isinstance(result.ranks[0].exception, StrictError)


def halve_a_gradient_of(forward: Any, then: Any) -> list[float]:
    """Halve a gradient on `then`, after `backward`; its leaf was first used on `forward`."""
    weight = torch.nn.Parameter(torch.ones(2, device="cuda"))
    forward.wait_stream(_current())
    with _on(forward):
        loss = (weight * 2).sum()
    _current().wait_stream(forward)
    loss.backward()
    assert weight.grad is not None
    with _on(then):
        weight.grad.mul_(0.5)
    torch.cuda.synchronize()
    return weight.grad.tolist()


def test_the_streams_of_backwards_caller_wait_for_those_it_ran_on() -> None:
    assert results(lambda: halve_a_gradient_of(_stream(), _current()), 1, strict=True) == [[1.0, 1.0]]


def test_other_streams_do_not_wait_for_those_backward_ran_on() -> None:
    error = run(lambda: halve_a_gradient_of(_stream(), _stream()), 1, strict=True).ranks[0].exception

    assert type(error) is StrictError
    assert "mul_" in str(error)


def test_backwards_caller_does_not_wait_for_streams_of_hooks() -> None:
    def body() -> None:
        weight, side = torch.nn.Parameter(torch.ones(2, device="cuda")), _stream()

        def on_side(parameter: Any) -> None:
            side.wait_stream(_current())
            with _on(side):
                parameter.grad.mul_(0.5)

        weight.register_post_accumulate_grad_hook(on_side)
        (weight * 2).sum().backward()
        assert weight.grad is not None
        weight.grad.add_(1)

    error = run(body, 1, strict=True).ranks[0].exception

    assert type(error) is StrictError
    assert "add_" in str(error)
