"""Races between streams in a strict world: planted ones are found, with both lines, and correct programs not blamed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simdist.errors import StrictError
from tests.c10d.nccl.worlds import join, of, results, run

_stream: Any = torch.cuda.Stream
_event: Any = torch.cuda.Event
_current: Any = torch.cuda.current_stream
_on: Any = torch.cuda.stream


def side_of(value: torch.Tensor) -> Any:
    """A stream that has seen all that the current one was given."""
    del value
    side = _stream()
    side.wait_stream(_current())
    return side


def launched() -> tuple[torch.Tensor, Any]:
    """An all_reduce under way."""
    tensor = of(1, 2, 3)
    return tensor, dist.all_reduce(tensor, async_op=True)


# Each a correct program, and what must be left out, by a flag, to plant a race in it.


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


PROGRAMS: list[Callable[[bool], Any]] = [
    *(read_after_wait, write_after_wait, input_changed_after_wait, input_read_before_wait, value_after_wait),
    *(copied_after_wait, filled_by_copy_after_wait, synchronized, view_after_wait, message_after_wait),
    *(future_after_wait, two_works_after_both, side_stream_waits_for_the_main_one),
    *(main_stream_waits_for_the_side_one, event_between, event_recorded_behind, event_synchronized),
    *(stream_synchronized, readers_before_a_writer, three_streams, launched_from_a_side_stream),
]


def play(program: Callable[[bool], Any], right: bool) -> None:
    """The program on a rank."""
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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_correct_program_is_not_blamed(program: Callable[[bool], Any]) -> None:
    results(play, args=[program, True], strict=True)


def test_without_strict_nobody_looks() -> None:
    for program in PROGRAMS[:2]:
        assert run(play, args=[program, False]).ok
