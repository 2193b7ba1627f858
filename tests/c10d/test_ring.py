"""A ring that is followed in arrays has the same outcomes, moments and bytes as the flow of its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.c10d.backends import GLOO
from simdist.c10d.calls._operation import Operation
from simdist.c10d.engine._flow import Blocked, Done, Failed, Flow
from simdist.c10d.engine._movement import Movement
from simdist.c10d.engine._ring import RingFlow

CLOSED = "Connection closed by peer"


@dataclass
class Network:
    """Latency and bandwidth of each pair are a function of the pair."""

    latency: int
    per_byte: float
    uneven: bool

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        return self.latency + (37 * source + 11 * target) * 100 * self.uneven

    def byte_ns(self, source: int, target: int) -> float:
        return self.per_byte * (1 + (source % 3) * self.uneven)

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        return now_ns


@dataclass
class Story:
    name: str
    ranks: int
    count: int
    network: Network
    times: dict[int, int]  # arrivals, in their order
    limits: dict[int, int] = field(default_factory=dict)
    closings: dict[tuple[int, int], int] = field(default_factory=dict)
    at_once: bool = False


@st.composite
def stories(draw: st.DrawFn) -> Story:
    ranks = draw(st.integers(2, 9))
    present = draw(st.permutations(range(ranks)))[: draw(st.integers(1, ranks))]
    # Often moments at which something ends, so that there are ties.
    moments = st.integers(0, 3_000_000) | st.integers(0, 60).map(lambda half: half * 50_000)
    story = Story(
        draw(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"])),
        ranks,
        draw(st.sampled_from([1, 2, 3, ranks - 1, ranks, 2 * ranks, 2 * ranks + 1, 5 * ranks + 3, 64])),
        Network(draw(st.sampled_from([0, 1000, 50_000])), draw(st.sampled_from([0.0, 0.1, 13.7])), draw(st.booleans())),
        {rank: draw(moments) for rank in present},
        at_once=draw(st.booleans()),
    )
    for rank in range(ranks):
        if draw(st.integers(0, 5)) == 0:
            story.limits[rank] = draw(moments)
        for peer in ((rank + 1) % ranks, (rank - 1) % ranks):
            if draw(st.integers(0, 7)) == 0:
                story.closings[rank, peer] = draw(moments)
    return story


def tensor(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def follow(story: Story, flow: Any, enter: Any, known: dict[tuple[int, int], int]) -> list[Any]:
    """Return everything that a flow shows after each arrival and conclusion, and after later closings."""
    seen: list[Any] = []

    def look() -> None:
        flow.conclude()
        changed, flow.changed = sorted(flow.changed), []
        seen.append((changed, [flow.outcome(rank) for rank in range(story.ranks)]))
        seen.append([flow.quiet(rank, 1_000_000) for rank in range(story.ranks)])
        seen.append([flow.stuck_on(rank) for rank in range(story.ranks)])

    for rank, time_ns in story.limits.items():
        flow.limit(rank, time_ns, "late")
    if story.at_once:
        for rank in story.times:
            enter(rank)
        if isinstance(flow, RingFlow):
            flow.arrive_all(story.times)
        else:
            for rank, time_ns in story.times.items():
                flow.arrive(rank, time_ns)
        look()
    else:
        for rank, time_ns in story.times.items():
            enter(rank)
            flow.arrive(rank, time_ns)
            look()
    # The other connections end when nothing moves: a rank fails, and its neighbours see it.
    for rank in range(story.ranks):
        if isinstance(flow.outcome(rank), Blocked):
            flow.fail(rank, Failed(10_000_000, "gone"))
            known[(rank + 1) % story.ranks, rank] = known[(rank - 1) % story.ranks, rank] = 10_050_000
            flow.look_again(rank)
            look()
            break
    return seen


@settings(max_examples=50, deadline=None)
@given(stories())
def test_both_flows_have_the_same_story(story: Story) -> None:
    operation = Operation(story.name, 4 * story.count, 4, torch.float32, (story.count,), "sum")
    ring = GLOO.algorithm.ring(operation, story.ranks)
    assert ring is not None
    seen = []
    tensors = []
    for arrays in (False, True):
        known = dict(story.closings)

        def closed(rank: int, peer: int, known: dict[tuple[int, int], int] = known) -> tuple[int, str] | None:
            return (known[rank, peer], CLOSED) if (rank, peer) in known else None

        def broken(known: dict[tuple[int, int], int] = known) -> list[int]:
            return [rank for pair in known for rank in pair]

        flow: Flow | RingFlow
        kept: Movement | RingFlow
        if arrays:
            movement = (GLOO.algorithm.combine("sum", torch.float32), torch.float32) if ring.moves else None
            flow = kept = RingFlow(ring, story.ranks, story.network, movement=movement, closed=closed, broken=broken)
        else:
            kept = moved = Movement(GLOO.algorithm.combine)

            def program(rank: int, moved: Movement = moved) -> Any:
                steps = GLOO.algorithm.program(operation, rank, story.ranks, lambda _: ([], []))
                if ring.moves:
                    moved.enter(rank, tensor(rank, story.count), steps, "sum")
                return steps

            flow = Flow(program, story.network, movement=moved, closed=closed)

        def enter(rank: int, flow: Flow | RingFlow = flow) -> None:
            if isinstance(flow, RingFlow) and flow.moves:
                flow.enter(rank, tensor(rank, story.count))

        seen.append(follow(story, flow, enter, known))
        tensors.append({rank: kept.result(rank).clone() for rank in story.times if kept.follows(rank)})

    assert seen[0] == seen[1]
    assert tensors[0].keys() == tensors[1].keys() == (set(story.times) if ring.moves else set())
    for rank, before in tensors[0].items():
        assert torch.equal(before, tensors[1][rank]), rank


@pytest.mark.parametrize("ranks", [3, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_an_undisturbed_ring_reduces_as_the_closed_fold_does(ranks: int, dtype: torch.dtype) -> None:
    count = 5 * ranks + 7
    inputs = [(10 * tensor(rank, count)).to(dtype) for rank in range(ranks)]
    expected = [each.clone() for each in inputs]
    GLOO.algorithm.all_reduce(expected, "sum")
    element = dtype.itemsize
    ring = GLOO.algorithm.ring(Operation("all_reduce", count * element, element), ranks)
    assert ring is not None
    flow = RingFlow(
        ring, ranks, Network(50_000, 0.1, uneven=False), movement=(GLOO.algorithm.combine("sum", dtype), dtype)
    )
    for rank in range(ranks):
        flow.enter(rank, inputs[rank])
    flow.arrive_all(dict.fromkeys(range(ranks), 0))

    for rank in range(ranks):
        assert isinstance(flow.outcome(rank), Done)
        assert torch.equal(flow.result(rank), expected[rank])
