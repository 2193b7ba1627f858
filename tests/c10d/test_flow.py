from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simdist.c10d.backends import GLOO
from simdist.c10d.calls._operation import Operation
from simdist.c10d.engine._disturbed import DisturbedFlow
from simdist.c10d.engine._flow import Blocked, Done, Failed, Flow
from simdist.cluster import Pace
from tests.c10d.strategies import Case, FakeCosts, UnsteadyCosts, cases, costs

SECOND = 1_000_000_000


def arrivals(ranks: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 20_000_000), min_size=ranks, max_size=ranks)


def ends(case: Case, network: FakeCosts, times: list[int], order: list[int]) -> list[int]:
    flow = Flow(case.program, network)
    for rank in order:
        flow.arrive(rank, times[rank])
    outcomes = [flow.outcome(rank) for rank in range(case.ranks)]
    assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
    return [outcome.time_ns for outcome in outcomes if isinstance(outcome, Done)]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), case=cases(), network=costs)
def test_once_everyone_has_come_everyone_is_done(data: st.DataObject, case: Case, network: FakeCosts) -> None:
    times = data.draw(arrivals(case.ranks))
    order = data.draw(st.permutations(range(case.ranks)))

    done = ends(case, network, times, order)

    assert all(end >= begin for begin, end in zip(times, done, strict=True))
    if case.needs_everyone:
        assert min(done) >= max(times)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=cases(), network=costs.map(lambda network: replace(network, per_byte=0.0)))
def test_without_contention_the_order_of_known_arrivals_changes_nothing(
    data: st.DataObject, case: Case, network: FakeCosts
) -> None:
    times = data.draw(arrivals(case.ranks))
    order = data.draw(st.permutations(range(case.ranks)))

    assert ends(case, network, times, order) == ends(case, network, times, list(range(case.ranks)))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=cases(), network=costs, late=st.integers(0, 10_000_000))
def test_arriving_later_makes_nobody_earlier(data: st.DataObject, case: Case, network: FakeCosts, late: int) -> None:
    times = data.draw(arrivals(case.ranks))
    straggler = data.draw(st.integers(0, case.ranks - 1))
    later = [time + late * (rank == straggler) for rank, time in enumerate(times)]
    order = list(range(case.ranks))

    before, after = ends(case, network, times, order), ends(case, network, later, order)

    # The order in which two messages leave may change, and so may the waits between ranks.
    assert all(b <= a + 2 * network.latency * 4 * case.ranks for b, a in zip(before, after, strict=True))
    if network.latency == 0:
        assert all(b <= a for b, a in zip(before, after, strict=True))


@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_what_one_rank_sends_the_other_receives(case: Case) -> None:
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in range(case.ranks):
        for step in case.program(rank):
            if step[0] == "send":
                sent[rank, step[1]].append(step[2])
            elif step[0] == "recv":
                received[step[1], rank].append(step[2])

    assert sent == received
    assert all(source != target for source, target in sent)


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_every_transfer_is_waited_for_once_and_after_it_was_posted(case: Case) -> None:
    for rank in range(case.ranks):
        posted = {"send": 0, "recv": 0}
        waited: dict[str, list[int]] = {"send": [], "recv": []}
        for step in case.program(rank):
            if step[0] == "send" or step[0] == "recv":
                posted[step[0]] += 1
            else:
                kind = step[0].removeprefix("wait_")
                assert isinstance(step[1], int)
                assert step[1] < posted[kind]
                waited[kind].append(step[1])

        assert {kind: sorted(indices) for kind, indices in waited.items()} == {
            kind: list(range(count)) for kind, count in posted.items()
        }


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 4, 1000, 1 << 20])
def test_a_ring_all_reduce_moves_each_byte_almost_twice(ranks: int, count: int) -> None:
    size = 4 * count

    total = sum(
        step[2]
        for rank in range(ranks)
        for step in Case("all_reduce", ranks, size, 0).program(rank)
        if step[0] == "send"
    )

    assert total == 2 * (ranks - 1) * size


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("barrier", 0),
        *((name, size) for name in ("all_reduce", "all_gather") for size in (16, 32_000, 4 << 20)),
        *(("reduce", size) for size in (16, 32_000, 1 << 20)),
    ],
)
def test_the_closed_form_of_an_idle_network_agrees_with_the_messages(name: str, ranks: int, size: int) -> None:
    case = Case(name, ranks, size * ranks, 0)  # no clipped segments
    last = max(ends(case, FakeCosts(50_000, 0.25), [0] * ranks, list(range(ranks))))

    assert GLOO.algorithm.duration_ns(Operation(name, case.size, 4), ranks, 50_000, 0.25) == pytest.approx(
        last, rel=0.05
    )


# -- single transfers; test_missing_ranks.py has the ranks that are stuck in them when one is missing or dead ----------

CLOSED = "closed"


def pair(source_ns: int, target_ns: int, network: FakeCosts, size: int = 1000) -> list[Done | Blocked | Failed | None]:
    flow = Flow(Case("broadcast", 2, size, 0).program, network)
    flow.arrive(0, source_ns)
    flow.arrive(1, target_ns)
    return [flow.outcome(0), flow.outcome(1)]


def test_data_goes_at_once_to_a_receiver_that_was_there_first() -> None:
    assert pair(900_000, 0, FakeCosts(50_000, 2.0)) == [Done(902_000), Done(952_000)]


def test_a_sender_that_was_there_first_waits_for_the_receiver_s_word() -> None:
    assert pair(0, 900_000, FakeCosts(50_000, 2.0)) == [Done(952_000), Done(1_002_000)]


def test_a_sender_that_meets_the_receiver_s_word_on_its_way_waits_less() -> None:
    assert pair(30_000, 0, FakeCosts(50_000, 2.0)) == [Done(52_000), Done(102_000)]


def test_data_waits_for_the_network_to_open() -> None:
    assert pair(0, 0, FakeCosts(50_000, 2.0, opens_ns=3_000_000)) == [Done(3_002_000), Done(3_052_000)]


def test_on_a_network_that_never_opens_both_ends_are_lost() -> None:
    assert pair(5, 0, FakeCosts(opens_ns=None)) == [Blocked("send", 1, 5, lost=True), Blocked("recv", 0, 0, lost=True)]


def test_a_waiting_rank_is_blocked_since_its_arrival() -> None:
    flow = Flow(Case("broadcast", 2, 8, 0).program, FakeCosts())

    flow.arrive(0, 100)

    assert flow.outcome(0) == Blocked("send", 1, 100)
    assert flow.outcome(1) is None


def test_a_limit_fails_a_rank_that_is_stuck_and_spares_one_that_is_done() -> None:
    flow = Flow(Case("gather", 3, 8, 0).program, FakeCosts(latency=0, per_byte=0))
    for rank in (0, 2):
        flow.limit(rank, SECOND, "late")
        flow.arrive(rank, 10)
    flow.conclude()

    assert flow.outcome(0) == Failed(SECOND, "late")
    assert flow.outcome(2) == Done(10)


def test_the_earliest_reason_ends_a_stuck_rank() -> None:
    flow = Flow(Case("broadcast", 2, 8, 0).program, FakeCosts())
    flow.limit(0, 3 * SECOND, "late")
    flow.limit(0, 2 * SECOND, "dead")
    flow.limit(0, 4 * SECOND, "later")
    flow.close(0, 1, SECOND, CLOSED)
    flow.arrive(0, 100)
    flow.conclude()

    assert flow.outcome(0) == Failed(SECOND, CLOSED)


def test_who_posts_to_a_closed_pair_fails_at_once() -> None:
    flow = Flow(Case("broadcast", 2, 8, 0).program, FakeCosts())
    flow.close(0, 1, 500, CLOSED)
    flow.arrive(0, 900)

    assert flow.outcome(0) == Failed(900, CLOSED)


@pytest.mark.parametrize(("closed_ns", "outcome"), [(103_000, Done(153_000)), (102_999, Failed(102_999, CLOSED))])
def test_what_has_left_before_the_connection_closes_arrives(closed_ns: int, outcome: object) -> None:
    flow = Flow(Case("broadcast", 2, 1000, 0).program, FakeCosts(50_000, 2.0))
    flow.close(1, 0, closed_ns, CLOSED)
    flow.arrive(1, 0)
    flow.arrive(0, 101_000)
    flow.conclude()

    assert flow.outcome(1) == outcome


@settings(max_examples=40, deadline=None)
@given(data=st.data(), case=cases(), network=costs)
def test_whatever_breaks_nobody_fails_before_it_came(data: st.DataObject, case: Case, network: FakeCosts) -> None:
    times = data.draw(arrivals(case.ranks))
    gone = data.draw(st.integers(0, case.ranks - 1))
    moment = data.draw(st.integers(0, 20_000_000))
    flow = Flow(case.program, network)
    flow.limit(gone, moment, "gone")
    for rank in range(case.ranks):
        flow.limit(rank, times[rank] + SECOND, "late")
        if rank != gone:
            flow.close(rank, gone, moment, CLOSED)
    for rank in range(case.ranks):
        flow.arrive(rank, times[rank])
    flow.conclude()

    for rank in range(case.ranks):
        outcome = flow.outcome(rank)
        assert isinstance(outcome, Done | Failed)  # every rank has a limit, so none hangs
        if isinstance(outcome, Done) or rank != gone:
            assert outcome.time_ns >= times[rank]
        assert outcome.time_ns <= times[rank] + SECOND + 1_000_000_000


# -- another pace ----------------------------------------------------------------------------------------------------

speeds = st.lists(
    st.tuples(st.integers(0, 40_000_000), st.sampled_from([1.0, 0.5, 0.05, 0.3])), min_size=1, max_size=4
).map(sorted)


def known(flow: Flow, ranks: int, moment: int) -> list[object]:
    """Return all findings of a flow, and take those that it has noted for its user."""
    flow.conclude()
    outcomes = [flow.outcome(rank) for rank in range(ranks)]
    quiet = [flow.quiet(rank, moment) for rank in range(ranks)]
    stuck = [flow.stuck_on(rank) for rank in range(ranks)]
    changed, flow.changed = flow.changed, []
    blocked, flow.blocked = flow.blocked, []
    waiting = sorted({rank for rank in blocked if isinstance(flow.outcome(rank), Blocked)})
    return [outcomes, quiet, stuck, changed, waiting, flow.until_ns, flow.under_way(moment)]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), case=cases(), network=costs, changes=speeds)
def test_a_flow_that_is_retimed_finds_what_one_finds_that_is_built_anew(
    data: st.DataObject, case: Case, network: FakeCosts, changes: list[tuple[int, float]]
) -> None:
    times = data.draw(arrivals(case.ranks))
    here = data.draw(st.permutations(range(case.ranks)))[: data.draw(st.integers(1, case.ranks))]
    pace, flow = Pace(), Flow(case.program, network, retimes=True)
    for rank in here:
        flow.arrive(rank, times[rank])
    for moment, speed in changes:
        known(flow, case.ranks, moment)
        pace.change(moment, speed)
        anew = Flow(case.program, network, pace=pace)
        for rank in here:
            anew.arrive(rank, times[rank])

        assert flow.retime(pace, moment)
        assert known(flow, case.ranks, moment) == known(anew, case.ranks, moment)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), case=cases(), network=costs, changes=speeds)
def test_a_flow_in_trouble_that_is_retimed_finds_what_a_new_one_finds(
    data: st.DataObject, case: Case, network: FakeCosts, changes: list[tuple[int, float]]
) -> None:
    times = data.draw(arrivals(case.ranks))
    gone = data.draw(st.integers(0, case.ranks - 1))
    end = data.draw(st.integers(0, 20_000_000))
    pace = Pace()

    def build(*, retimes: bool = False) -> Flow:
        flow = Flow(case.program, network, pace=pace, retimes=retimes)
        flow.limit(gone, end, "gone")
        for rank in range(case.ranks):
            if rank != gone:
                flow.close(rank, gone, end + 1000, CLOSED)
        for rank in range(case.ranks):
            flow.arrive(rank, times[rank])
        return flow

    flow = build(retimes=True)
    for moment, speed in changes:
        known(flow, case.ranks, moment)
        pace.change(moment, speed)
        if not flow.retime(pace, moment):
            flow = build(retimes=True)

        assert known(flow, case.ranks, moment) == known(build(), case.ranks, moment)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), case=cases(), network=st.builds(UnsteadyCosts), changes=speeds)
def test_a_retimed_flow_on_a_disturbed_network_finds_what_a_new_one_finds(
    data: st.DataObject, case: Case, network: UnsteadyCosts, changes: list[tuple[int, float]]
) -> None:
    times = data.draw(arrivals(case.ranks))
    pace, flow = Pace(), DisturbedFlow(case.program, network, retimes=True)
    for rank in range(case.ranks):
        flow.arrive(rank, times[rank])
    for moment, speed in changes:
        known(flow, case.ranks, moment)
        pace.change(moment, speed)
        anew = DisturbedFlow(case.program, network, pace=pace)
        for rank in range(case.ranks):
            anew.arrive(rank, times[rank])

        assert flow.retime(pace, moment)
        assert known(flow, case.ranks, moment) == known(anew, case.ranks, moment)


def test_a_flow_cannot_be_retimed_past_the_end_of_a_connection() -> None:
    flow = Flow(Case("broadcast", 2, 1000, 0).program, FakeCosts(latency=0, per_byte=1.0), retimes=True)
    flow.close(1, 0, 1500, CLOSED)
    for rank in range(2):
        flow.arrive(rank, 0)
    pace = Pace()
    pace.change(500, 0.6)

    assert flow.outcome(1) == Done(1000)
    assert flow.retime(pace, 500)
    assert flow.outcome(1) == Done(1334)
    pace.change(600, 0.1)
    assert not flow.retime(pace, 600)
