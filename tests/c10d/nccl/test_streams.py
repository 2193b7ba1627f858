"""Collectives end on streams: which host threads and streams wait for them, in virtual time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from simdist.cluster import build
from simdist.faults import Partition
from tests.c10d.nccl.worlds import join, of, results, run

MS = 1_755_000  # cycles of the clock that `_sleep` counts
_sleep: Any = torch.cuda._sleep  # torch's own tests use it

_event: Any = torch.cuda.Event


def now() -> float:
    """Return the virtual time in seconds."""
    return round(time.monotonic() - START, 4)


START = 0.0


def begin() -> int:
    """Join and make the communicator; time counts from here."""
    global START
    rank = join()
    dist.all_reduce(of(1))
    torch.cuda.synchronize()
    START = time.monotonic()
    return rank


def test_the_host_waits_for_a_late_rank_only_where_it_wants_a_value() -> None:
    def body() -> list[Any]:
        rank = begin()
        if rank == 1:
            time.sleep(1)
        tensor = of(rank + 1.0)
        work: Any = dist.all_reduce(tensor, async_op=True)
        issued, early = now(), work.is_completed()
        work.wait()
        waited = now()
        event = _event()
        event.record()
        recorded = event.query()
        torch.cuda.current_stream().synchronize()
        return [issued, waited, early, recorded, now(), event.query(), work.is_completed(), tensor.item()]

    first, second = results(body)

    assert first == [0, 0, False, False, 1.0001, True, True, 3]
    assert second[0] == second[1] == 1.0
    assert second[-1] == 3


def test_a_synchronous_call_is_queued_on_the_current_stream_and_returns() -> None:
    def body() -> list[float]:
        rank = begin()
        time.sleep(rank)
        tensor = of(rank)
        returned: Any = dist.all_reduce(tensor)
        at = now()
        return [returned, at, tensor.item(), now()]

    assert results(body) == [[None, 0, 1, 1.0001], [None, 1, 1, 1.0001]]


@pytest.mark.parametrize("wish", ["item", "cpu", "print", "synchronize", "event", "device"])
def test_whatever_wants_a_value_waits(wish: str) -> None:
    def body() -> float:
        rank = begin()
        time.sleep(2 * rank)
        tensor = of(rank)
        dist.all_reduce(tensor)
        event = _event()
        event.record()
        wishes: dict[str, Any] = {
            "item": tensor.item,
            "cpu": tensor.cpu,
            "print": lambda: str(tensor),
            "synchronize": torch.cuda.synchronize,
            "event": event.synchronize,
            "device": lambda: torch.cuda.synchronize(rank),
        }
        wishes[wish]()
        return now()

    assert results(body) == [2.0001, 2.0001]


def test_a_kernel_waits_for_what_is_not_there_yet_and_the_host_does_not() -> None:
    def body() -> list[float]:
        rank = begin()
        time.sleep(rank)
        tensor = of(rank)
        dist.all_reduce(tensor)
        doubled = tensor * 2
        at = now()
        return [at, doubled.item(), now()]

    assert results(body) == [[0, 2, 1.0001], [1, 2, 1.0001]]


def test_what_is_only_sent_may_be_read_and_changed_at_once() -> None:
    def body() -> list[float]:
        rank = begin()
        tensor = of(5)
        if rank == 0:
            dist.send(tensor, 1)  # makes the communicator of the two
            work: Any = dist.isend(tensor, 1)
            tensor += 1
            at = now()
            work.wait()
            return [at, tensor.item()]
        dist.recv(tensor, 0)
        time.sleep(1)
        dist.recv(tensor, 0)
        return [now(), tensor.item()]

    assert results(body) == [[0.0002, 6], [1.0002, 5]]


def test_a_collective_begins_when_the_streams_of_all_ranks_have_come_there() -> None:
    def body() -> float:
        rank = begin()
        tensor = of(1)
        _sleep((rank + 1) * 10 * MS)
        dist.all_reduce(tensor)
        issued = now()
        torch.cuda.synchronize()
        assert issued == 0
        return now()

    assert results(body) == [0.0201, 0.0201]


@pytest.mark.parametrize("copy", ["to", "tensor", "cuda", "copy_"])
def test_a_copy_from_the_host_waits_for_the_stream_unless_it_may_not(copy: str) -> None:
    def body() -> list[float]:
        begin()
        there = torch.ones(1, device="cuda")
        _sleep(10 * MS)
        seen = []
        for waits in (False, True):
            source = torch.ones(1).pin_memory()
            if copy == "tensor" and waits:
                torch.tensor([1.0], device="cuda")
            elif copy == "copy_":
                there.copy_(source, non_blocking=not waits)
            elif copy == "cuda":
                source.cuda(non_blocking=not waits)
            else:
                source.to("cuda", non_blocking=not waits)
            seen.append(now())
        return seen

    assert results(body, 1) == [[0, 0.01]]


def test_computing_goes_on_beside_an_asynchronous_collective() -> None:
    def body(waits_first: bool) -> float:
        begin()
        big = torch.ones(1 << 18, device="cuda")
        work: Any = dist.all_reduce(big, async_op=True)
        if waits_first:
            work.wait()
        _sleep(MS)
        work.wait()
        torch.cuda.synchronize()
        return now()

    cluster = build(2, local_bandwidth_bytes_per_s=1 << 30)

    overlapped = results(body, args=[False], cluster=cluster)
    one_by_one = results(body, args=[True], cluster=cluster)

    assert overlapped == [0.0011, 0.0011]
    assert one_by_one == [0.0021, 0.0021]


def test_works_of_one_group_run_in_turn_and_those_of_two_side_by_side() -> None:
    def body(groups: int) -> float:
        begin()
        others = [dist.new_group([0, 1]) for _ in range(groups)]
        for group in others:
            dist.all_reduce(of(1), group=group)
        torch.cuda.synchronize()
        before = now()
        for place in range(2):
            dist.all_reduce(torch.empty(1 << 10, device="cuda"), group=others[place % groups], async_op=True)
        torch.cuda.synchronize()
        return round(1e6 * (now() - before))

    slow = build(2, local_latency_ns=1_000_000)
    assert results(body, args=[1], cluster=slow) == [4000, 4000]
    assert results(body, args=[2], cluster=slow) == [2000, 2000]


def test_a_future_is_done_and_its_callbacks_run_on_a_stream_behind_it() -> None:
    def body() -> list[Any]:
        rank = begin()
        tensor = of(rank + 1.0)
        work: Any = dist.all_reduce(tensor, async_op=True)
        future = work.get_future()
        done = future.done()
        stream = torch.cuda.current_stream()
        halved = future.then(lambda each: (each.value()[0] / 2, torch.cuda.current_stream() == stream))
        value, same = halved.wait()
        return [done, value.item(), same, torch.cuda.current_stream() == stream]

    assert results(body) == [[True, 1.5, False, True]] * 2


def test_a_host_that_has_launched_1024_works_waits_for_the_first() -> None:
    def body() -> list[float]:
        rank = begin()
        tensor = of(1)
        if rank:
            time.sleep(1)
        launched = []
        for count in range(1100):
            dist.all_reduce(tensor, async_op=True)
            if count in (1023, 1024):
                launched.append(now())
        return launched

    first, second = results(body)

    assert first == [0, 1.0001]
    assert second[0] == 1


def test_a_barrier_blocks_the_host() -> None:
    def body() -> list[float]:
        rank = begin()
        time.sleep(rank)
        dist.barrier(device_ids=[rank])
        first = now()
        time.sleep(1 - rank)
        work: Any = dist.barrier(async_op=True, device_ids=[rank])
        issued = now()
        work.wait()
        return [first, issued - first, now()]

    first, second = results(body)

    assert first[0] == second[0] == 1.0001
    assert [round(first[1], 3), round(second[1], 3)] == [1, 0]
    assert first[2] == second[2]


def test_two_sends_to_each_other_before_the_receives_deadlock() -> None:
    def body() -> None:
        rank = begin()
        dist.send(of(1), 1 - rank)
        dist.recv(of(1), 1 - rank)
        torch.cuda.synchronize()

    result = run(body)

    assert result.deadlock is not None
    assert "synchronize with a stream that waits for send(dst=1) in group '0'" in str(result.deadlock)
    assert [rank.exit_code for rank in result.ranks] == [-6, -6]


def test_calls_in_another_order_hang_and_a_strict_world_explains_it() -> None:
    def body() -> None:
        rank = begin()
        tensor = of(1)
        if rank == 0:
            dist.all_reduce(tensor)
        else:
            dist.broadcast(tensor, 0)
        tensor.item()

    hanging, strict = run(body), run(body, strict=True)

    assert [rank.exit_code for rank in hanging.ranks] == [-6, -6]
    text = str(strict.ranks[0].exception)
    assert type(strict.ranks[0].exception).__name__ == "MismatchError"
    assert "ranks do not agree on collective #1 in group '0':" in text
    assert "rank 0 called all_reduce(float32[1], sum) at test_streams.py:" in text
    assert "rank 1 called broadcast(float32[1], root=0) at test_streams.py:" in text


def test_a_partition_holds_a_collective_up() -> None:
    def body() -> float:
        begin()
        time.sleep(1)
        dist.all_reduce(of(1))
        torch.cuda.synchronize()
        return now()

    cut = Partition(groups=((0,), (1,)), start_ns=500_000_000, until_ns=3_500_000_000)

    assert results(body, cluster=build(2, hosts=2), faults=[cut]) == [3.4998, 3.4998]


def test_results_are_noted_without_waiting_for_them() -> None:
    def body() -> float:
        rank = begin()
        time.sleep(rank)
        dist.all_reduce(of(rank))
        return now()

    result = run(body, record_results=True)

    assert result.values == [0, 1]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # the old name of a function
def test_what_one_collective_fills_another_may_read_at_once() -> None:
    def body() -> list[Any]:
        rank = begin()
        tensor, ready = of(rank + 1.0), of(7)
        dist.all_reduce(tensor)
        gathered = [of(0), of(0)]
        dist.all_gather(gathered, tensor)
        other = dist.new_group([0, 1])
        received = [of(0), of(0)]
        dist.all_to_all(received, [ready, tensor] if rank else [tensor, ready], group=other)
        ready += 1
        whole = functional.all_gather_tensor(functional.all_reduce(of(rank + 1.0), "sum", other), 0, other)
        return [[each.item() for each in gathered], [each.item() for each in received], whole.tolist(), ready.item()]

    first, second = results(body)

    assert first == [[3, 3], [3, 7], [3, 3], 8]
    assert second == [[3, 3], [7, 3], [3, 3], 8]


def test_a_send_ends_with_its_receive() -> None:
    def body() -> float:
        rank = join()
        move: Any = dist.isend if rank == 0 else dist.irecv
        work = move(of(1, 2), 1 - rank)
        work.wait()
        torch.cuda.synchronize()
        taken: float = work._get_duration()
        return taken

    sent, received = results(body, env={"TORCH_NCCL_ENABLE_TIMING": "1"})

    assert sent == received > 0.01  # milliseconds: a message takes its latency, not only its bytes
