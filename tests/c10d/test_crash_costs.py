"""What a crash inside a collective makes the simulator do, in counts: it grows no faster than the ranks do."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.c10d.engine._flow import Flow
from simdist.c10d.engine._followed import Followed
from simdist.c10d.engine._ring import RingFlow
from simdist.faults import Crash


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a collective was worked out anew, a step of a flow made, and a sweep over a ring."""
    found: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    count(Followed, "rebuild")
    count(Flow, "_post")
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
def test_a_crash_is_worked_out_a_few_times_however_many_ranks_fail_one_after_the_other(
    counts: Counter[str], ranks: int, when: Literal["before", "during"]
) -> None:
    result = crash(ranks, when)

    assert [rank.status for rank in result.ranks] == ["raised", "killed"] + ["raised"] * (ranks - 2)
    assert counts["rebuild"] <= 3


def test_a_crash_in_a_ring_takes_as_many_sweeps_as_the_trouble_takes_to_go_around(counts: Counter[str]) -> None:
    crash(64, "during")

    assert counts["_post"] == 0
    # Both ways around from the dead rank a neighbour stops one or two messages after the one before it.
    assert 0 < counts["_pass_waits"] <= 4 * 64


def test_a_crash_in_a_broadcast_follows_each_message_a_few_times(counts: Counter[str]) -> None:
    crash(64, "during", "broadcast")

    assert counts["_post"] <= 4 * 2 * 63


def test_a_dead_rank_in_a_ring_of_hundreds_tells_the_same_as_in_a_small_one() -> None:
    small, large = crash(4, "during"), crash(300, "during")

    def texts(result: simdist.RunResult) -> list[str]:
        return sorted({str(rank.exception).split("]:")[0] for rank in result.ranks if rank.exception is not None})

    assert texts(small) == texts(large)
    assert all(rank.status == "raised" for rank in large.ranks if rank.rank != 1)
