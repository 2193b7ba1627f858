"""The work of the simulator for collectives in trouble, in counts: it stays in proportion to the trouble."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d.engine._flow import Flow
from simdist.c10d.engine._followed import Followed
from simdist.c10d.engine._ring import RingFlow
from simdist.cluster import build
from simdist.faults import Crash, Fault, LinkDelay


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count rebuilds and retimings of flows, their steps, and sweeps over a ring."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(Followed, "rebuild")
    count(Flow, "_post")
    count(Flow, "retime")
    count(RingFlow, "_pass_waits")
    return found


def crash(ranks: int, when: Literal["before", "during"], name: str = "all_reduce") -> simdist.RunResult:
    def body() -> None:
        dist.init_process_group("gloo")
        tensor = torch.ones(1000)
        if name == "all_reduce":
            dist.all_reduce(tensor)
        else:
            dist.broadcast(tensor, 0)

    return simdist.run(body, world_size=ranks, faults=[Crash(rank=1, op=name, when=when)])


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_a_crash_is_worked_out_a_few_times_however_many_ranks_fail(
    counts: Counter[str], ranks: int, when: Literal["before", "during"]
) -> None:
    result = crash(ranks, when)

    assert [rank.status for rank in result.ranks] == ["raised", "killed"] + ["raised"] * (ranks - 2)
    assert counts["rebuild"] <= 3


def test_a_crash_in_a_ring_takes_as_many_sweeps_as_it_takes_to_go_around(counts: Counter[str]) -> None:
    crash(64, "during")

    assert counts["_post"] == 0
    # In both directions from the dead rank each rank stops one or two messages after the one before it.
    assert 0 < counts["_pass_waits"] <= 4 * 64


def test_a_crash_in_a_broadcast_follows_each_message_a_few_times(counts: Counter[str]) -> None:
    crash(64, "during", "broadcast")

    assert counts["_post"] <= 4 * 2 * 63


def test_a_dead_rank_in_a_large_ring_has_the_effect_of_one_in_a_small_ring() -> None:
    small, large = crash(4, "during"), crash(120, "during")

    def texts(result: simdist.RunResult) -> list[str]:
        return sorted({str(rank.exception).split("]:")[0] for rank in result.ranks if rank.exception is not None})

    assert texts(small) == texts(large)
    assert all(rank.status == "raised" for rank in large.ranks if rank.rank != 1)


def overlap(count: int, fault: Fault) -> simdist.RunResult:
    """Run `count` all_reduces of four ranks, two at a time, each called while those before it are under way."""

    def body() -> None:
        dist.init_process_group("gloo")
        works = []
        for _ in range(count):
            works.append(dist.all_reduce(torch.ones(1 << 16), async_op=True))
            time.sleep(0.05)
        for work in works:
            assert work is not None
            with contextlib.suppress(RuntimeError):
                work.wait()

    return simdist.run(body, world_size=4, faults=[fault], cluster=build(4, local_bandwidth_bytes_per_s=1_000_000))


def test_collectives_in_trouble_are_followed_once_at_any_change_of_pace(
    counts: Counter[str],
) -> None:
    result = overlap(24, LinkDelay(src=0, dst=1, delay_ns=1_000_000))
    per_collective = counts["_post"] / 24

    assert result.ok
    assert counts["rebuild"] == 24
    assert per_collective == 4 * 2 * 2 * 3 * 2  # ranks, trips, messages in each, ends of each; Gloo cuts each in two
    assert counts["retime"] > 100


def test_a_crash_inside_one_of_many_open_collectives_makes_few_flows(counts: Counter[str]) -> None:
    result = overlap(24, Crash(rank=1, op="all_reduce", nth=16, when="during"))

    assert result.ranks[1].status == "killed"
    assert counts["rebuild"] <= 3 * 24
