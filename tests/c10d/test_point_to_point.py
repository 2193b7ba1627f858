"""Sends and receives: when they meet, what they carry, and how they end when an end is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.errors import MismatchError
from simdist.faults import Hold, LinkDelay
from tests.c10d.worlds import APP_CLOSED, BROKEN, CLOSED, MS, Diary, attempt, in_group, now_ns, ones, sleep_s, timed_out

LATENCY_NS = 50_000
FAST: dict[str, Any] = {"local_latency_ns": LATENCY_NS, "local_bandwidth_bytes_per_s": 500_000_000}  # 2 ns per byte


def meet(send_at_ns: int, receive_at_ns: int, count: int = 250) -> list[int]:
    """Return when a blocking send and a blocking receive of `count` floats end."""

    def body(rank: int) -> int:
        dist.barrier()
        zero = now_ns()
        sleep_s((send_at_ns, receive_at_ns)[rank] / 1e9)
        if rank == 0:
            dist.send(ones(count), 1)
        else:
            dist.recv(torch.zeros(count), 0)
        return now_ns() - zero

    return in_group(body, 2, cluster=build(2, **FAST))


def test_data_goes_at_once_to_a_receive_that_was_posted_first() -> None:
    assert meet(900_000, 0) == [902_000, 952_000]


def test_a_send_that_was_posted_first_waits_for_the_receiver_s_word() -> None:
    assert meet(0, 900_000) == [952_000, 1_002_000]


def test_a_send_and_a_receive_posted_together_take_two_latencies() -> None:
    assert meet(10_000, 10_000) == [62_000, 112_000]


def test_even_one_float_waits_for_its_receiver() -> None:
    def body(rank: int) -> str:
        if rank == 0:
            return attempt(lambda: dist.send(ones(1), 1))
        sleep_s(3)
        return "never receives"

    assert in_group(body, 2, timeout_s=1)[0] == timed_out("send", 1000)


def test_tags_pair_messages_whatever_their_order() -> None:
    def body(rank: int) -> list[float]:
        received = torch.zeros(2)
        if rank == 0:
            works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (5, 6)]
            for work in works:
                assert work is not None
                work.wait()
        else:
            dist.recv(received[:1], 0, tag=6)
            dist.recv(received[1:], 0, tag=5)
        return received.tolist()

    assert in_group(body, 2)[1] == [6, 5]


def test_blocking_sends_against_the_order_of_the_receives_are_a_deadlock() -> None:
    def main() -> str:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
        first, second = ((5, 6), (6, 5))[dist.get_rank()]
        call: Callable[..., Any] = dist.send if dist.get_rank() == 0 else dist.recv
        return attempt(
            lambda: (call(ones(), 1 - dist.get_rank(), tag=first), call(ones(), 1 - dist.get_rank(), tag=second))
        )

    result = simdist.run(main, world_size=2)

    assert result.values == [timed_out("send", 1000), timed_out("recv", 1000)]
    assert result.deadlock is not None


def test_the_buffer_is_read_when_the_receiver_is_ready() -> None:
    def body(rank: int) -> float:
        tensor = torch.tensor([1.0])
        if rank == 0:
            work = dist.isend(tensor, 1)
            assert work is not None
            tensor.fill_(2.0)
            work.wait()
            tensor.fill_(3.0)
        else:
            sleep_s(0.1)
            dist.recv(tensor, 0)
        return tensor.item()

    assert in_group(body, 2) == [3.0, 2.0]


def test_a_receive_from_anyone_takes_who_comes_first_and_says_who_it_was() -> None:
    def body(rank: int) -> list[tuple[int, float]]:
        if rank:
            sleep_s((0, 0.3, 0.1, 0.2)[rank])
            dist.send(torch.tensor([float(rank)]), 0)
            return []
        tensor = torch.zeros(1)
        return [(dist.recv(tensor), tensor.item()) for _ in range(3)]

    assert in_group(body, 4)[0] == [(2, 2.0), (3, 3.0), (1, 1.0)]


def test_a_receive_from_anyone_takes_what_arrives_not_what_is_sent_first() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank:
            sleep_s(0.001 * rank)
            dist.send(ones(), 0)
            return None
        begin = now_ns()
        return [(dist.recv(ones()), now_ns() - begin) for _ in range(2)]

    undisturbed = simdist.run(body, world_size=3)
    late = simdist.run(body, world_size=3, faults=[LinkDelay(src=1, dst=0, delay_ns=10_000_000, both_ways=False)])
    held = simdist.run(body, world_size=3, faults=[Hold(src=1, dst=0, until_ns=20_000_000)])

    # The notice of the send, the notice of the receive, the data: three latencies of 50 us; 16 bytes take 4 ns.
    assert undisturbed.values[0] == [(1, 1_150_004), (2, 2_150_004)]
    assert late.values[0] == [(2, 2_150_004), (1, 21_150_004)]
    assert held.values[0][0] == (2, 2_150_004)
    assert held.values[0][1][0] == 1


def from_anyone(*sources: int | None) -> list[float]:
    """Send 1 and 2 from rank 1; then, before it learns of them, rank 0 posts a receive for each of the `sources`."""
    dist.init_process_group("gloo")
    if dist.get_rank():
        sent = [dist.isend(ones() * number, 0) for number in (1, 2)]
        for work in sent:
            assert work is not None
            work.wait()
        return []
    sleep_s(0.00001)
    tensors = [ones(), ones()]
    works = [dist.irecv(tensor, source) for tensor, source in zip(tensors, sources, strict=True)]
    for work in works:
        assert work is not None
        work.wait()
    return [tensor[0].item() for tensor in tensors]


@pytest.mark.parametrize(
    ("sources", "expected"), [((None, None), [1, 2]), ((None, 1), [2, 1]), ((1, None), [1, 2])], ids=str
)
def test_every_send_that_is_under_way_meets_its_receive(sources: tuple[int | None, ...], expected: list[float]) -> None:
    result = simdist.run(from_anyone, world_size=2, args=sources)

    assert result.values[0] == expected


def test_who_is_late_at_a_receive_from_anyone_meets_the_one_for_itself() -> None:
    def body() -> Any:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        if rank:
            sleep_s(0.001)
            dist.send(ones() * rank, 0)
            return None
        tensors = [ones(), ones()]
        works = [dist.irecv(tensors[0]), dist.irecv(tensors[1], 1)]
        for work in works:
            assert work is not None
            work.wait()
        return [tensor[0].item() for tensor in tensors]

    faults = [LinkDelay(src=1, dst=0, delay_ns=10_000_000, both_ways=False)]
    result = simdist.run(body, world_size=3, faults=faults)

    assert result.values[0] == [2.0, 1.0]


def test_a_receive_from_anyone_heeds_the_tag() -> None:
    def body(rank: int) -> int:
        if rank == 0:
            sleep_s(0.1)
            sources = [dist.recv(torch.zeros(1), tag=tag) for tag in (2, 1)]
            return sources[0] * 10 + sources[1]
        dist.send(ones(1), 0, tag=rank)
        return 0

    assert in_group(body, 3)[0] == 21


def test_recv_returns_the_global_rank_of_the_sender() -> None:
    def body(rank: int) -> int:
        group = dist.new_group([1, 2])
        if rank == 1:
            dist.send(ones(1), 2, group=group)
        elif rank == 2:
            return dist.recv(torch.zeros(1), None, group=group) * 10 + dist.get_group_rank(group, 1)
        return -1

    assert in_group(body, 3)[2] == 10


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.bfloat16, torch.int64, torch.int16])
def test_every_dtype_arrives_whole_also_one_that_collectives_refuse(dtype: torch.dtype) -> None:
    def body(rank: int) -> torch.Tensor:
        tensor = torch.arange(6).reshape(2, 3).to(dtype) if rank == 0 else torch.zeros(2, 3, dtype=dtype)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        return tensor

    sent, received = in_group(body, 2)

    assert torch.equal(sent, received)


def test_an_empty_message_still_meets_its_receiver() -> None:
    assert meet(0, 10_000, count=0) == [60_000, 110_000]


def test_messages_between_one_pair_share_the_wire() -> None:
    def body(rank: int) -> list[int]:
        dist.barrier()
        zero = now_ns()
        tensors = [ones(250_000) for _ in range(2)]  # 2 ms each
        if rank == 1:
            works = [dist.irecv(tensor, 0, tag=tag) for tag, tensor in enumerate(tensors)]
        else:
            sleep_s(0.001)
            works = [dist.isend(tensor, 1, tag=tag) for tag, tensor in enumerate(tensors)]
        ends = []
        for work in works:
            assert work is not None
            work.wait()
            ends.append(now_ns() - zero)
        return ends

    assert in_group(body, 2, cluster=build(2, **FAST)) == [[3 * MS, 5 * MS], [3 * MS + 50_000, 5 * MS + 50_000]]


def test_a_message_that_does_not_fit_names_both_ends() -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.send(ones(4), 1)
        else:
            dist.recv(torch.zeros(3, dtype=torch.int64), 0)

    result = simdist.run(main, world_size=2, strict=True)

    for rank in result.ranks:
        assert isinstance(rank.exception, MismatchError)
        assert "rank 0 sends float32[4] at test_point_to_point.py:" in str(rank.exception)
        assert "rank 1 receives int64[3] at test_point_to_point.py:" in str(rank.exception)


# -- (h): real Gloo, when the other end never calls --------------------------------------------------------------------


def story(body: Callable[[Diary, int], None], size: int, timeout_s: float) -> list[list[tuple[str, str, float]]]:
    def main() -> Diary:
        diary = Diary.begin(timeout_s)
        body(diary, dist.get_rank())
        diary.sleep_until(10)
        return diary

    result = simdist.run(main, world_size=size)
    assert all(rank.status in ("returned", "killed") for rank in result.ranks), result.ranks
    return [
        [(entry.name, entry.outcome, round(entry.ended_ms / 1000, 2)) for entry in rank.value.entries]
        if rank.ok
        else []
        for rank in result.ranks
    ]


def test_a_rank_that_times_out_closes_all_its_connections() -> None:
    def body(diary: Diary, rank: int) -> None:
        tensor = ones()
        if rank == 0:
            diary.call("recv(1)", lambda: dist.recv(tensor, 1))
            diary.call("recv(1) again", lambda: dist.recv(tensor, 1))
        elif rank == 2:
            diary.call("send(1)", lambda: dist.send(tensor, 1))
            diary.call("send(1) again", lambda: dist.send(tensor, 1))
            diary.call("send(0)", lambda: dist.send(tensor, 0))
        if rank != 1:
            diary.call("all_reduce", lambda: dist.all_reduce(tensor))

    stories = story(body, 3, 1)

    assert stories[0][:2] == [("recv(1)", timed_out("recv", 1000), 1.0), ("recv(1) again", APP_CLOSED, 1.0)]
    assert stories[2][:2] == [("send(1)", timed_out("send", 1000), 1.0), ("send(1) again", APP_CLOSED, 1.0)]
    assert all(text in BROKEN and at == 1.0 for rank in (0, 2) for _, text, at in stories[rank][2:])


def test_a_sender_after_the_receiver_s_timeout_is_refused_others_are_not() -> None:
    def body(diary: Diary, rank: int) -> None:
        tensor = ones()
        if rank == 0:
            diary.call("recv(1)", lambda: dist.recv(tensor, 1))
        elif rank == 1:
            diary.sleep_until(1.5)
            diary.call("send(0)", lambda: dist.send(tensor, 0))
            diary.call("send(2)", lambda: dist.send(tensor, 2))
        else:
            diary.sleep_until(1.6)
            diary.call("recv(1)", lambda: dist.recv(tensor, 1))

    assert story(body, 3, 1) == [
        [("recv(1)", timed_out("recv", 1000), 1.0)],
        [("send(0)", CLOSED, 1.5), ("send(2)", "ok", 1.6)],
        [("recv(1)", "ok", 1.6)],
    ]


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_messages_with_a_dead_rank_fail_and_others_go_on() -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 1:
            kill_me()
        diary.sleep_until(0.3)
        if rank == 0:
            diary.call("recv(1)", lambda: dist.recv(ones(), 1))
            diary.call("again", lambda: dist.recv(ones(), 1))
            diary.call("recv(any)", lambda: dist.recv(ones()), show=True)
        else:
            diary.call("send(1)", lambda: dist.send(ones(), 1))
            diary.call("again", lambda: dist.send(ones(), 1))
            diary.call("send(0)", lambda: dist.send(ones(), 0))

    assert story(body, 3, 1) == [
        [("recv(1)", CLOSED, 0.3), ("again", CLOSED, 0.3), ("recv(any)", "2", 0.3)],
        [],
        [("send(1)", CLOSED, 0.3), ("again", CLOSED, 0.3), ("send(0)", "ok", 0.3)],
    ]


def test_messages_that_wait_fail_when_their_peer_dies() -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 1:
            diary.sleep_until(0.5)
            kill_me()
        if rank == 0:
            diary.call("recv(1)", lambda: dist.recv(ones(), 1))
        else:
            diary.call("send(1)", lambda: dist.send(ones(), 1))

    assert story(body, 3, 2) == [[("recv(1)", CLOSED, 0.5)], [], [("send(1)", CLOSED, 0.5)]]


@pytest.mark.parametrize("died_at_s", [0.0, 0.5])
def test_a_receive_from_anyone_outlives_a_dead_rank(died_at_s: float) -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 1:
            diary.sleep_until(died_at_s)
            kill_me()
        if rank == 0:
            diary.sleep_until(0.2)
            diary.call("recv(any)", lambda: dist.recv(ones()), show=True)
        else:
            diary.sleep_until(0.7)
            diary.call("send(0)", lambda: dist.send(ones(), 0))

    assert story(body, 3, 2) == [[("recv(any)", "2", 0.7)], [], [("send(0)", "ok", 0.7)]]


def wait(work: Any, *timeout_s: float) -> Callable[[], object]:
    return lambda: work.wait(*(timedelta(seconds=seconds) for seconds in timeout_s))


def test_a_wait_s_timeout_replaces_the_group_s_and_closes_connections() -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 0:
            work = dist.irecv(ones(), 1)
            assert work is not None
            diary.call("wait(0.5)", wait(work, 0.5))
            diary.call("wait again", wait(work))
            diary.call("is_completed", work.is_completed, show=True)
        elif rank == 2:
            work = dist.isend(ones(), 1)
            diary.call("wait(0.5)", wait(work, 0.5))
            diary.call("wait again", wait(work))

    stories = story(body, 3, 1)

    assert stories[0] == [
        ("wait(0.5)", timed_out("recv", 500), 0.5),
        ("wait again", APP_CLOSED, 0.5),
        ("is_completed", "True", 0.5),
    ]
    assert stories[2] == [("wait(0.5)", timed_out("send", 500), 0.5), ("wait again", APP_CLOSED, 0.5)]


def test_a_message_s_timeout_runs_from_its_wait() -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 0:
            diary.call("wait(2)", wait(dist.irecv(ones(), 1), 2))
        elif rank == 2:
            work = dist.isend(ones(), 1)
            diary.sleep_until(0.7)
            diary.call("wait", wait(work))

    stories = story(body, 3, 1)

    assert stories[0] == [("wait(2)", timed_out("recv", 2000), 2.0)]
    assert stories[2] == [("wait", timed_out("send", 1000), 1.7)]


def test_a_timed_out_receive_is_tried_again_from_anyone_not_from_one() -> None:
    def body(diary: Diary, rank: int) -> None:
        if rank == 0:
            diary.call("recv(any)", lambda: dist.recv(ones()))
            diary.call("recv(any) again", lambda: dist.recv(ones()))
            diary.call("recv(1)", lambda: dist.recv(ones(), 1))
        elif rank == 1:
            diary.sleep_until(1.2)
            diary.call("send(0)", lambda: dist.send(ones(), 0))

    assert story(body, 3, 1)[:2] == [
        [
            ("recv(any)", timed_out("recv", 1000), 1.0),
            ("recv(any) again", timed_out("recv", 1000), 2.0),
            ("recv(1)", APP_CLOSED, 2.0),
        ],
        [("send(0)", CLOSED, 1.2)],
    ]
