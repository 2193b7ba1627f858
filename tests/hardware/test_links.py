from __future__ import annotations

import math

import pytest

from simdist.faults import Crash, Fault, Hold, LinkDelay, Partition
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


def test_a_partition_loses_what_passes_between_its_groups() -> None:
    conditions = Conditions([Partition(groups=((0, 1), (2,)), start_ns=S, until_ns=2 * S)], 1.0)

    assert conditions.due_s(0, 2, 1.0) is None
    assert conditions.due_s(2, 1, 1.5) is None
    assert conditions.due_s(0, 1, 1.5) == 1.5
    assert conditions.due_s(0, 3, 1.5) == 1.5  # rank 3 is on neither side
    assert conditions.due_s(0, 2, 2.0) == 2.0


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


def test_why_link_faults_cannot_be_replayed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_with_restarts_there_is_no_launchers_store_to_lose() -> None:
    assert not_replayed(load("scenarios/store_gone.toml"), "gloo") == ()
    (left_out,) = not_replayed(load("scenarios/store_gone.toml", overrides=["max_restarts=1"]), "gloo")
    assert str(left_out) == ("faults[0] (StoreLost): with restarts rank 0 serves the store itself, and no launcher's")
