"""Delays that are drawn for each message: an extra time up to a limit, and a tail. No message overtakes another."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.faults import Fault, LinkDelay, numbers_for, problems_of
from simdist.result import RunResult
from tests.faults.programs import MS, run
from tests.faults.test_links import LATENCY_NS, SIZE_BYTES, START_NS, message_times

ARRIVED_NS = START_NS + SIZE_BYTES + LATENCY_NS
CLUSTER = build(2, local_latency_ns=LATENCY_NS, local_bandwidth_bytes_per_s=1_000_000_000)


def stream_of(count: int, gap_ns: int) -> list[int]:
    """Send messages from rank 0 to rank 1, one each `gap_ns` from 10 ms on; returns when each has arrived."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    boxes = [torch.zeros(1) for _ in range(count)]
    works = [dist.irecv(box, 0) for box in boxes] if rank == 1 else []
    times = []
    if rank == 0:
        for index in range(count):
            time.sleep((START_NS + index * gap_ns - time.monotonic_ns()) / 1e9)
            work = dist.isend(torch.full((1,), float(index)), 1)
            assert work is not None
            works.append(work)
    for work in works:
        assert work is not None
        work.wait()
        times.append(time.monotonic_ns())
    if rank == 1:
        assert [box.item() for box in boxes] == list(range(count))
    return times


def streamed(*faults: Fault, count: int = 60, gap_ns: int = 5 * MS, seed: int = 0) -> RunResult:
    return simdist.run(stream_of, args=(count, gap_ns), world_size=2, cluster=CLUSTER, faults=faults, seed=seed)


def lateness(result: RunResult, gap_ns: int = 5 * MS) -> list[int]:
    """Return how much later each message has arrived than without a fault."""
    usual_ns = START_NS + 4 + LATENCY_NS
    return [when - usual_ns - index * gap_ns for index, when in enumerate(result.values[1])]


JITTER = LinkDelay(src=0, dst=1, delay_ns=1 * MS, jitter_ns=2 * MS, both_ways=False)


def test_each_message_takes_up_to_so_much_longer() -> None:
    late = lateness(streamed(JITTER))

    assert all(1 * MS <= each <= 3 * MS for each in late)
    assert len(set(late)) == 60
    assert min(late) < 1.2 * MS
    assert max(late) > 2.8 * MS
    assert 1.8 * MS < sum(late) / 60 < 2.2 * MS


def test_a_drawn_delay_is_the_hash_of_its_moment() -> None:
    (late,) = set(lateness(streamed(JITTER, count=1)))
    draw = numbers_for(JITTER, [], seed=0)

    assert late == 1 * MS + int(draw("jitter", 0, 1, START_NS) * (2 * MS + 1))


def test_the_seed_decides_and_other_faults_do_not() -> None:
    late = lateness(streamed(JITTER))

    assert lateness(streamed(JITTER)) == late
    assert lateness(streamed(JITTER, LinkDelay(src=1, dst=0, delay_ns=0, both_ways=False))) == late
    assert lateness(streamed(JITTER, seed=1)) != late


def test_equal_faults_draw_different_numbers() -> None:
    alone, both = lateness(streamed(JITTER)), lateness(streamed(JITTER, JITTER))

    assert [two - one for one, two in zip(alone, both, strict=True)] != alone
    assert all(2 * MS <= each <= 6 * MS for each in both)


def test_a_share_of_the_messages_is_in_the_tail() -> None:
    late = lateness(streamed(LinkDelay(src=0, dst=1, delay_ns=0, tail_share=0.2, tail_ns=3 * MS, both_ways=False)))

    assert set(late) == {0, 3 * MS}
    assert 5 <= late.count(3 * MS) <= 20


def test_what_leaves_behind_a_late_message_arrives_behind_it() -> None:
    gap_ns = MS // 10
    tail = LinkDelay(src=0, dst=1, delay_ns=0, tail_share=0.1, tail_ns=2 * MS, both_ways=False)
    late = lateness(streamed(tail, gap_ns=gap_ns), gap_ns)

    draw = numbers_for(tail, [], seed=0)
    free = [draw("tail", 0, 1, START_NS + index * gap_ns) >= 0.1 for index in range(60)]
    latest, expected = 0, []
    for index, is_free in enumerate(free):
        latest = max(latest, index * gap_ns + (0 if is_free else 2 * MS))
        expected.append(latest - index * gap_ns)
    assert late == expected
    assert any(0 < each < 2 * MS for each in late)


def test_messages_behind_the_end_of_a_delay_do_not_overtake_those_before() -> None:
    gap_ns = MS // 10
    delay = LinkDelay(src=0, dst=1, delay_ns=1 * MS, until_ns=START_NS + gap_ns, both_ways=False)

    assert lateness(streamed(delay, count=4, gap_ns=gap_ns), gap_ns) == [
        10 * gap_ns,
        9 * gap_ns,
        8 * gap_ns,
        7 * gap_ns,
    ]


def test_a_drawn_delay_ends_with_the_fault() -> None:
    jitter = LinkDelay(src=0, dst=1, delay_ns=0, jitter_ns=2 * MS, until_ns=START_NS + 50 * MS, both_ways=False)
    late = lateness(streamed(jitter))

    assert all(late[:10])
    assert set(late[10:]) == {0}


def test_collectives_take_longer_by_what_is_drawn() -> None:
    clean = run().values
    fault = LinkDelay(src=0, dst=1, delay_ns=0, jitter_ns=2 * MS)
    first, second = run(fault), run(fault)

    assert first.ok
    assert first.values == second.values
    steps_ns = [b - a for a, b in zip(first.values[0], first.values[0][1:], strict=False)]
    usual_ns = clean[0][1] - clean[0][0]
    assert all(usual_ns < each for each in steps_ns)
    assert steps_ns[0] != steps_ns[1]


def reduce_on_a_device() -> list[int]:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    ends = []
    for _ in range(3):
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        ends.append(time.monotonic_ns())
    return ends


def durations(values: Sequence[list[int]]) -> list[int]:
    return [b - a for a, b in zip(values[0], values[0][1:], strict=False)]


def test_a_ring_of_nccl_takes_longer_in_each_step_by_what_is_drawn() -> None:
    fault = LinkDelay(src=0, dst=1, delay_ns=0, jitter_ns=2 * MS)
    clean = simdist.run(reduce_on_a_device, world_size=2, backend="nccl")
    late = simdist.run(reduce_on_a_device, world_size=2, backend="nccl", faults=[fault])

    assert late.ok, late
    longer = [b - a for a, b in zip(durations(clean.values), durations(late.values), strict=True)]
    assert all(0 < each <= 4 * MS for each in longer)
    assert longer[0] != longer[1]


def test_a_message_without_a_drawn_delay_is_as_before() -> None:
    assert message_times(LinkDelay(src=0, dst=1, delay_ns=3 * MS))[1] == ARRIVED_NS + 3 * MS


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tail_share": 0.1}, ".tail_share: needs tail_ns, by which this share of the messages takes longer"),
        ({"tail_ns": 5}, ".tail_ns: needs tail_share, the share of the messages that take so much longer"),
        ({"tail_share": 1.5, "tail_ns": 5}, ".tail_share: 1.5 is no share; expected a number from 0 to 1"),
        ({"tail_share": -0.1, "tail_ns": 5}, ".tail_share: -0.1 is no share; expected a number from 0 to 1"),
        ({"tail_share": "all", "tail_ns": 5}, ".tail_share: expected a number, found the text 'all'"),
        ({"jitter_ns": -1}, ".jitter_ns: -1 ns lies before the start"),
    ],
)
def test_drawn_delays_that_make_no_sense_are_refused(fields: dict[str, float], problem: str) -> None:
    fault = LinkDelay(src=0, dst=1, delay_ns=1, **fields)  # type: ignore[arg-type]

    assert problems_of([fault], 2) == [f"faults[0]{problem}"]


def test_a_drawn_delay_is_reported_with_what_may_be_drawn() -> None:
    fault = LinkDelay(src=0, dst=1, delay_ns=0, jitter_ns=2 * MS, tail_share=0.01, tail_ns=200 * MS)

    assert (
        fault.begins()
        == "messages between ranks 0 and 1 take 0 to 2 ms longer, and a share of 0.01 of them 200 ms more"
    )
    assert repr(fault) == "LinkDelay(src=0, dst=1, delay_ns=0, jitter_ns=2000000, tail_share=0.01, tail_ns=200000000)"
