from __future__ import annotations

import math

import pytest

from simdist.faults import Crash, Fault, Hold, Isolate, LinkDelay, LinkLoss, LinkSlow, Machine, Partition
from simdist.hardware.compare import _portable
from simdist.hardware.compare._portable import not_replayed
from simdist.hardware.links._conditions import Conditions, link_faults
from simdist.hardware.links._namespaces import address_of, rank_at
from simdist.scenario import load

S = 1_000_000_000


def test_without_faults_a_packet_arrives_when_it_leaves() -> None:
    assert Conditions([], 1.0).due_s(0, 1, 2.5) == 2.5


def test_a_delay_adds_to_both_directions_of_its_link_while_it_lasts() -> None:
    conditions = Conditions([LinkDelay(src=0, dst=1, delay_ns=S, start_ns=2 * S, until_ns=4 * S)], 1.0)

    due_s = [conditions.due_s(0, 1, now_s) for now_s in (1.0, 2.0, 3.5)]

    assert due_s == [1.0, 3.0, 4.5]
    assert conditions.due_s(1, 0, 2.0) == 3.0
    assert conditions.due_s(0, 2, 2.0) == 2.0


def test_a_delay_of_one_direction_leaves_the_other_alone() -> None:
    conditions = Conditions([LinkDelay(src=0, dst=1, delay_ns=S, both_ways=False)], 1.0)

    assert (conditions.due_s(0, 1, 1.0), conditions.due_s(1, 0, 1.0)) == (2.0, 1.0)


def test_no_packet_overtakes_another_when_a_delay_ends() -> None:
    conditions = Conditions([LinkDelay(src=0, dst=1, delay_ns=S, until_ns=S)], 1.0)

    assert [conditions.due_s(0, 1, now_s) for now_s in (0.9, 1.1, 3.0)] == [1.9, 1.9, 3.0]


def test_delays_add_up_and_are_in_the_runs_time() -> None:
    conditions = Conditions([LinkDelay(src=0, dst=1, delay_ns=S, start_ns=S)] * 2, 0.5)

    assert conditions.due_s(0, 1, 0.4) == 0.4
    assert conditions.due_s(0, 1, 0.5) == 1.5


def test_a_jitter_is_drawn_for_each_packet_and_keeps_their_order() -> None:
    jitter = LinkDelay(src=0, dst=1, delay_ns=S, jitter_ns=S, both_ways=False)
    conditions, again = Conditions([jitter], 1.0, 7), Conditions([jitter], 1.0, 7)

    due_s = [conditions.due_s(0, 1, float(now_s)) for now_s in range(0, 200, 5)]
    close_s = [again.due_s(0, 1, now_s / 10) for now_s in range(100)]

    late_s = [due - 5 * index for index, due in enumerate(due_s) if due is not None]
    assert all(1 <= each <= 2 for each in late_s)
    assert len(set(late_s)) == 40
    assert close_s == sorted(close_s, key=lambda due: due or 0)
    assert close_s[0] == due_s[0]
    assert Conditions([jitter], 1.0, 8).due_s(0, 1, 0.0) != due_s[0]


def test_a_share_of_packets_is_in_the_tail_in_the_runs_time() -> None:
    tail = LinkDelay(src=0, dst=1, delay_ns=0, tail_share=0.25, tail_ns=S)
    conditions = Conditions([tail], 0.5)

    late_s = [(conditions.due_s(0, 1, float(now_s)) or 0) - now_s for now_s in range(100)]

    assert set(late_s) == {0.0, 0.5}
    assert 15 <= late_s.count(0.5) <= 35


def test_a_share_of_packets_is_lost_in_one_direction() -> None:
    conditions = Conditions([LinkLoss(src=0, dst=1, share=0.3, until_ns=100 * S, both_ways=False)], 1.0)

    lost = [conditions.due_s(0, 1, float(now_s)) is None for now_s in range(100)]

    assert 20 <= lost.count(True) <= 40
    assert not any(conditions.due_s(1, 0, float(now_s)) is None for now_s in range(100))
    assert conditions.due_s(0, 1, 100.0) == 100.0


def test_packets_go_through_a_slow_link_in_turn_in_the_runs_time() -> None:
    slow = LinkSlow(src=0, dst=1, bandwidth=1_000, until_ns=100 * S, both_ways=False)
    conditions = Conditions([slow], 0.5)

    assert [conditions.due_s(0, 1, now_s, 2_000) for now_s in (0.0, 0.5, 9.0)] == [1.0, 2.0, 10.0]
    assert [conditions.due_s(*pair, 0.0, 2_000) for pair in ((1, 0), (0, 2))] == [0.0, 0.0]
    assert conditions.due_s(0, 1, 50.0, 2_000) == 50.0


def test_a_slow_link_behind_a_slower_one_is_never_full() -> None:
    links = [LinkSlow(src=0, dst=1, bandwidth=1_000), LinkSlow(src=0, dst=1, bandwidth=4_000)]
    conditions = Conditions(links, 1.0)

    assert [conditions.due_s(0, 1, 0.0, 1_000) for _ in range(3)] == [1.25, 2.25, 3.25]


def test_a_partition_loses_what_passes_between_its_groups() -> None:
    conditions = Conditions([Partition(groups=((0, 1), (2,)), start_ns=S, until_ns=2 * S)], 1.0)

    assert conditions.due_s(0, 2, 1.0) is None
    assert conditions.due_s(2, 1, 1.5) is None
    assert conditions.due_s(0, 1, 1.5) == 1.5
    assert conditions.due_s(0, 3, 1.5) == 1.5  # rank 3 is on neither side
    assert conditions.due_s(0, 2, 2.0) == 2.0


def test_a_flapping_partition_loses_packets_while_split_in_the_runs_time() -> None:
    cut = Partition(groups=((0,), (1,)), start_ns=S, until_ns=9 * S, period_ns=4 * S, up_ns=S)
    conditions = Conditions([cut], 0.5)

    lost = [conditions.due_s(0, 1, now_s) is None for now_s in (0.4, 0.5, 1.9, 2.0, 2.4, 2.5, 3.9, 4.1, 4.5)]

    assert lost == [False, True, True, False, False, True, True, False, False]


def test_an_isolated_rank_loses_what_it_sends_and_what_is_sent_to_it() -> None:
    conditions = Conditions([Isolate(rank=1, until_ns=2 * S)], 1.0)

    assert [conditions.due_s(*pair, 1.0) for pair in ((0, 1), (1, 2), (0, 2))] == [None, None, 1.0]
    assert conditions.due_s(0, 1, 2.0) == 2.0


def test_what_is_held_arrives_when_it_is_released_or_never() -> None:
    released = Conditions([Hold(src=0, dst=1, start_ns=S, until_ns=5 * S, both_ways=True)], 1.0)
    kept = Conditions([Hold(src=0, dst=1, both_ways=True)], 1.0)

    assert [released.due_s(0, 1, now_s) for now_s in (0.5, 1.0, 4.0, 6.0)] == [0.5, 5.0, 5.0, 6.0]
    assert released.due_s(1, 0, 2.0) == 5.0
    assert kept.due_s(1, 0, 2.0) == math.inf


def test_the_events_are_those_of_a_simulation_in_the_runs_time() -> None:
    faults: list[Fault] = [
        Partition(groups=((0,), (1,)), start_ns=2 * S, until_ns=4 * S),
        LinkDelay(src=0, dst=1, delay_ns=5_000_000, until_ns=S),
    ]

    assert [(when_s, text) for when_s, _, text in Conditions(faults, 0.5).events()] == [
        (0.0, "messages between ranks 0 and 1 take 5 ms longer"),
        (1.0, "the network splits: ranks 0 | 1"),
        (2.0, "the network heals: ranks 0 | 1"),
    ]
    assert link_faults([Crash(rank=0, at_ns=1), *faults]) == faults


@pytest.mark.parametrize("rank", [0, 1, 254, 255, 4095])
def test_a_rank_is_found_by_its_address(rank: int) -> None:
    assert rank_at(bytes(map(int, address_of(rank).split(".")))) == rank


def test_an_address_of_somebody_else_is_no_rank() -> None:
    assert rank_at(bytes([192, 168, 0, 1])) == -1
    assert rank_at(b"") == -1


LINKS = "scenarios/partition_heals.toml"


def test_why_link_faults_cannot_be_replayed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_portable, "why_no_namespaces", lambda: "this process is not root's")
    plan = load(LINKS)

    assert [str(each) for each in not_replayed(plan, "gloo")] == [
        "faults[0] (Partition): link faults need root, network namespaces and TUN devices: this process is not root's"
    ]
    assert not_replayed(plan, "nccl")[0].reason == (
        "link faults need ranks that talk through the network, and those of nccl on one machine do not"
    )
    assert not_replayed(plan, "gloo", nodes=2)[0].reason == "link faults strike links between ranks on one machine"


def test_a_machine_that_can_replays_them_but_for_a_hold_of_one_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_portable, "why_no_namespaces", lambda: "")

    assert not_replayed(load(LINKS), "gloo") == ()
    assert not_replayed(load("scenarios/hold.toml"), "gloo") == ()
    (left_out,) = not_replayed(load("scenarios/hold.toml", overrides=["faults[0].both_ways=false"]), "gloo")
    assert left_out.reason.startswith("Gloo sends nothing that the receiver has not asked for")


def test_a_cut_of_one_direction_and_of_a_host_are_not_replayed() -> None:
    machine = Machine("gloo", 1, 0)

    assert Partition(groups=((0,), (1,)), period_ns=2, up_ns=1).real_obstacle(machine) == ""
    assert Isolate(rank=0).real_obstacle(machine) == ""
    one_way = Partition(groups=((0,), (1,)), one_way=True).real_obstacle(machine)
    assert one_way.startswith("Gloo sends nothing that the receiver has not asked for")
    assert Isolate(rank=0, host=True).real_obstacle(machine).endswith("a host has none to another")


def test_with_restarts_there_is_no_launchers_store_to_lose() -> None:
    assert not_replayed(load("scenarios/store_gone.toml"), "gloo") == ()
    (left_out,) = not_replayed(load("scenarios/store_gone.toml", overrides=["max_restarts=1"]), "gloo")
    assert str(left_out) == ("faults[0] (StoreLost): with restarts rank 0 serves the store itself, and no launcher's")
