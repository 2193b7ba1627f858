"""A recalled collective reports the same as one that is worked out, whenever its ranks arrive."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import simdist
from simdist.c10d.engine import _followed, _recalled
from simdist.c10d.engine._flow import Flow
from simdist.c10d.engine._movement import Movement, Notes
from simdist.c10d.engine._recalled import Past, Recalled
from simdist.cluster import build
from simdist.faults import Crash, Fault, Hang, LinkDelay, SlowRank, When
from tests.c10d.strategies import Case, FakeCosts, cases
from tests.c10d.test_flow import SECOND

Flows = Flow | Recalled


@dataclass(frozen=True, slots=True)
class Undisturbed(FakeCosts):
    """A network that is always open: no moment is compared with another."""

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through."""
        return now_ns


costs = st.builds(Undisturbed, latency=st.integers(0, 1_000_000), per_byte=st.sampled_from([0.0, 0.25, 8.0]))


class Copies(Movement):
    """Notes the moves."""

    def __init__(self) -> None:
        super().__init__(lambda name, dtype: lambda local, came, out: None)

    @property
    def story(self) -> list[Any]:
        return [step for step in self._to_do if step[0] is not Movement._enter]


def recalled(past: Past, case: Case, network: FakeCosts, movement: Copies) -> Recalled:
    def enter(rank: int) -> None:
        movement.enter(rank, torch.zeros(0), case.program(rank), "sum")

    return Recalled(past, partial(Flow, case.program, network), movement, enter)


def known(flow: Flows, ranks: int) -> list[object]:
    """Return all that `Followed` reads from the flow after an arrival."""
    flow.conclude()
    changed, flow.changed = flow.changed, []
    blocked, flow.blocked = flow.blocked, []
    stuck = [rank for rank in dict.fromkeys(blocked) if rank not in changed]
    return [changed, stuck, [flow.outcome(rank) for rank in range(ranks)], flow.until_ns]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), case=cases(), network=costs)
def test_what_is_recalled_is_what_is_worked_out(data: st.DataObject, case: Case, network: FakeCosts) -> None:
    past = Past(case.ranks)
    orders = [data.draw(st.permutations(range(case.ranks))) for _ in range(2)]
    for order in (*orders, *orders):  # known orders, new ones, and ones with the same beginning
        notes, movement = Notes(), Copies()
        real, again = Flow(case.program, network, movement=notes), recalled(past, case, network, movement)
        for rank in order:
            time_ns = data.draw(st.sampled_from((0, 1, 50_000, 7_000_000)))
            real.arrive(rank, time_ns)
            again.arrive(rank, time_ns)

            assert known(again, case.ranks) == known(real, case.ranks)
        assert movement.story == notes.moved


@settings(max_examples=35, deadline=None)
@given(data=st.data(), case=cases(), network=costs)
def test_a_flow_that_takes_over_goes_on_as_if_it_had_been_there(
    data: st.DataObject, case: Case, network: FakeCosts
) -> None:
    past = Past(case.ranks)
    order = data.draw(st.permutations(range(case.ranks)))
    over = data.draw(st.integers(0, case.ranks - 1))
    for _ in range(2):
        notes, movement = Notes(), Copies()
        real, again = Flow(case.program, network, movement=notes), recalled(past, case, network, movement)
        flow: Flows = again
        for index, rank in enumerate(order):
            time_ns = data.draw(st.integers(0, SECOND))
            if index == over:
                flow = again.work_out()
            if index >= over:
                movement.enter(rank, torch.zeros(0), case.program(rank), "sum")
            real.arrive(rank, time_ns)
            flow.arrive(rank, time_ns)
            reported, worked_out = known(flow, case.ranks), known(real, case.ranks)

            if index != over:  # there all stuck ranks are reported again
                assert reported == worked_out
        assert known(flow, case.ranks)[2:] == known(real, case.ranks)[2:]
        assert movement.story == notes.moved


def test_an_operation_remembers_so_much_and_no_more() -> None:
    case, network, past = Case("broadcast", 3, 8, 0), Undisturbed(), Past(3)
    past.left = 30  # the first order takes 23, the second one the rest
    made: list[Flow] = []

    def make(**more: Any) -> Flow:
        made.append(Flow(case.program, network, **more))
        return made[-1]

    known = []
    for order in ((0, 1, 2), (2, 1, 0), (0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)):
        flow = Recalled(past, make, None, None)
        known.append(all(flow.arrive(rank, 0) for rank in order))

    assert known == [True] * 4 + [False] * 2
    assert (past.left, len(made)) == (0, 2)


OPERATIONS = ("broadcast", "reduce", "gather", "scatter")
WHEN: tuple[When, ...] = ("before", "during", "after")


def train(steps: list[tuple[str, int, int, list[int]]]) -> list[object]:
    """Call operations one after the other, each after some work of the rank; returns the results."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank, size = dist.get_rank(), dist.get_world_size()
    kept: list[object] = []
    for name, root, count, work_us in steps:
        tensor = torch.arange(count, dtype=torch.float32) + rank
        listed = [torch.full((count,), float(other)) for other in range(size)] if rank == root else None
        time.sleep(work_us[rank] / 1e6)
        try:
            if name == "broadcast":
                dist.broadcast(tensor, root)
            elif name == "reduce":
                dist.reduce(tensor, root)
            elif name == "gather":
                dist.gather(tensor, listed, root)
            else:
                dist.scatter(tensor, listed, root)
        except RuntimeError as error:
            kept.append(str(error))
            break
        kept.append([tensor.tolist(), [each.tolist() for each in listed or ()]])
    return kept


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    rank, op = draw(st.integers(0, 3)), draw(st.sampled_from(OPERATIONS))
    nth, when = draw(st.integers(1, 5)), draw(st.sampled_from(WHEN))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return Crash(rank=rank, op=op, nth=nth, when=when)
    if kind == 1:
        return Hang(rank=rank, op=op, nth=nth, duration_ns=draw(st.sampled_from((None, 400_000, 6 * SECOND))))
    if kind == 2:
        return SlowRank(rank=rank, delay_ns=draw(st.integers(1, 400_000)))
    if kind == 3:
        return Crash(rank=rank, at_ns=draw(st.integers(0, 2_000_000)))
    return LinkDelay(src=rank, dst=(rank + 1) % 4, delay_ns=1_000_000, start_ns=draw(st.integers(0, 2_000_000)))


@settings(max_examples=20, deadline=None)
@given(
    room=st.sampled_from((0, 10, 40, 50_000)),
    calls=st.lists(
        st.tuples(
            st.sampled_from(OPERATIONS),
            st.integers(0, 3),
            st.sampled_from((1, 100, 5000)),
            st.lists(st.sampled_from((0, 0, 0, 30, 400)), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=3,
    ),
    struck=st.lists(faults(), max_size=2),
    hosts=st.sampled_from((1, 2, 4)),
)
def test_a_run_has_the_digest_that_it_has_without(room: int, calls: Any, struck: list[Fault], hosts: int) -> None:
    steps = [call for call in calls for _ in range(3)]
    found = []
    for up_to in (0, 64):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_followed, "RECALL_UP_TO", up_to)
            patch.setattr(_recalled, "_MOST", room)
            result = simdist.run(train, args=(steps,), world_size=4, faults=struck, cluster=build(4, hosts=hosts))
        found.append((result.digest, [(rank.status, rank.value) for rank in result.ranks]))

    assert found[0] == found[1]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_loop_works_messages_out_for_each_order_of_arrivals_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[int] = []
    arrive = Flow.arrive

    def counting(self: Flow, rank: int, time_ns: int) -> None:
        worked_out.append(rank)
        arrive(self, rank, time_ns)

    monkeypatch.setattr(Flow, "arrive", counting)
    simdist.run(train, args=([(name, 0, 1, [0] * 4)] * 50,), world_size=4).raise_for_failure()

    assert 4 <= len(worked_out) <= 24
