"""Networks that split in one direction or repeatedly, and ranks and hosts that are cut off from all others."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import Network, build
from simdist.faults import Fault, Isolate, Partition, problems_of
from simdist.scenario import load
from tests.faults.programs import MS, events_of, run, statuses
from tests.faults.test_links import LATENCY_NS, SIZE_BYTES, START_NS, message_times

ARRIVED_NS = START_NS + SIZE_BYTES + LATENCY_NS


def after(moment_ns: int) -> int:
    """Return when a message arrives that leaves at this moment."""
    return moment_ns + SIZE_BYTES + LATENCY_NS


# -- one direction --------------------------------------------------------------------------------------------------


def test_a_partition_of_one_way_lets_the_other_way_pass() -> None:
    healed_ns = START_NS + 7 * MS
    cut = Partition(groups=((0,), (1, 2)), one_way=True, until_ns=healed_ns)

    assert message_times(cut, source=0, target=1)[1] == after(healed_ns)
    assert message_times(cut, source=1, target=0)[0] == ARRIVED_NS
    assert message_times(cut, source=1, target=2)[2] == ARRIVED_NS


def test_a_partition_of_one_way_cuts_nothing_between_its_other_groups() -> None:
    cut = Partition(groups=((0,), (1,), (2,)), one_way=True)

    assert message_times(cut, source=1, target=2)[2] == ARRIVED_NS
    assert message_times(cut, source=0, target=2) == {0: "Timed out waiting 1000ms", 2: "Timed out waiting 1000ms"}


# -- repeatedly -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start_ns", "left_ns"),
    [
        (START_NS, START_NS + 3 * MS),  # split since this moment
        (START_NS - 2 * MS, START_NS + 1 * MS),
        (START_NS - 3 * MS, START_NS),  # just whole again
        (START_NS - 4 * MS + 1, START_NS),  # whole for one more nanosecond
        (START_NS - 4 * MS, START_NS + 3 * MS),  # the second period
        (START_NS + 1, START_NS),
    ],
)
def test_a_message_passes_when_a_flapping_network_is_whole(start_ns: int, left_ns: int) -> None:
    cut = Partition(groups=((0,), (1,)), start_ns=start_ns, period_ns=4 * MS, up_ns=1 * MS, optional=True)

    assert message_times(cut)[1] == after(left_ns)


def test_a_flapping_network_is_whole_after_its_end() -> None:
    cut = Partition(groups=((0,), (1,)), until_ns=START_NS + 500, period_ns=START_NS + 3 * MS, up_ns=MS)

    assert message_times(cut)[1] == after(START_NS + 500)


def test_a_message_waits_until_all_flapping_cuts_are_open_at_once() -> None:
    first = Partition(groups=((0,), (1,)), start_ns=START_NS, period_ns=4 * MS, up_ns=1 * MS)
    second = Partition(groups=((0,), (1,)), start_ns=START_NS, period_ns=6 * MS, up_ns=2 * MS)

    # The first is open from 3, 7, 11 ms on for 1 ms, the second from 4, 10 ms on for 2 ms.
    assert message_times(first, second)[1] == after(START_NS + 11 * MS)


def test_cuts_that_are_never_open_at_once_let_nothing_pass() -> None:
    network = Network(build(2))
    network.cut(((0,), (1,)), period_ns=10, up_ns=5)
    network.cut(((0,), (1,)), start_ns=5, period_ns=10, up_ns=5)

    assert network.open_from_ns(0, 1, 7) is None
    assert network.open_from_ns(0, 1, 3) is None


def test_collectives_get_through_a_flapping_network_between_its_splits() -> None:
    cut = Partition(groups=((0, 1), (2,)), start_ns=MS, until_ns=100 * MS, period_ns=20 * MS, up_ns=MS)
    result = run(cut)

    assert statuses(result) == ["returned"] * 3
    assert [each // MS for each in result.values[0]] == [20, 40, 60]  # it is whole from 20, 40 and 60 ms on
    assert [(event.time_ns, event.data["text"]) for event in events_of(result, "fault")] == [
        (1 * MS, "the network splits for 19 ms of every 20 ms: ranks 0, 1 | 2"),
    ]


def test_a_flapping_network_reports_its_end_once() -> None:
    cut = Partition(groups=((0, 1), (2,)), start_ns=MS, until_ns=30 * MS, period_ns=20 * MS, up_ns=MS)

    assert [event.time_ns for event in events_of(run(cut), "fault")] == [1 * MS, 30 * MS]


# -- one rank, or one host ------------------------------------------------------------------------------------------


def test_an_isolated_rank_reaches_nobody_and_nobody_reaches_it() -> None:
    end_ns = START_NS + 5 * MS
    alone = Isolate(rank=1, until_ns=end_ns)

    assert message_times(alone, source=0, target=1)[1] == after(end_ns)
    assert message_times(alone, source=1, target=2)[2] == after(end_ns)
    assert message_times(alone, source=0, target=2)[2] == ARRIVED_NS


def talk(pairs: list[tuple[int, int]]) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    time.sleep(0.005)
    for first, second in pairs:
        if dist.get_rank() == first:
            dist.send(torch.ones(2), second)
        elif dist.get_rank() == second:
            dist.recv(torch.ones(2), first)


@pytest.mark.parametrize(
    ("host", "pair", "stuck"),
    [(False, (0, 1), [0, 1]), (True, (0, 1), []), (True, (2, 3), []), (True, (1, 2), [1, 2]), (False, (2, 3), [])],
)
def test_ranks_of_an_isolated_host_still_reach_each_other(host: bool, pair: tuple[int, int], stuck: list[int]) -> None:
    alone = Isolate(rank=1, host=host, start_ns=2 * MS)
    result = simdist.run(talk, args=([pair],), world_size=4, cluster=build(4, hosts=2), faults=[alone])

    assert [each.rank for each in result.ranks if each.status == "raised"] == stuck


def test_a_host_that_has_all_ranks_is_cut_off_from_nobody() -> None:
    result = run(Isolate(rank=1, host=True, optional=True))

    assert result.values == run().values
    assert result.faults[0].struck_ns == ()


def test_an_isolated_rank_is_reported_when_it_begins_and_ends() -> None:
    result = run(Isolate(rank=1, start_ns=2 * MS, until_ns=5 * MS))

    assert [(event.time_ns, event.rank, event.data["text"]) for event in events_of(result, "fault")] == [
        (2 * MS, -1, "rank 1 is cut off from all others"),
        (5 * MS, -1, "rank 1 reaches all others again"),
    ]
    assert Isolate(rank=1, host=True).begins() == "the host of rank 1 is cut off from all others"


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Partition(groups=((0,), (1,)), up_ns=5), ".up_ns: is a part of a period; give period_ns as well"),
        (
            Partition(groups=((0,), (1,)), period_ns=5),
            ".period_ns: needs up_ns, for which the network is whole in each period",
        ),
        (Partition(groups=((0,), (1,)), period_ns=0, up_ns=1), ".period_ns: 0 ns is no period"),
        (
            Partition(groups=((0,), (1,)), period_ns=5, up_ns=0),
            ".up_ns: in 0 ns nothing passes; leave out the period for a network that is split all the time",
        ),
        (
            Partition(groups=((0,), (1,)), period_ns=5, up_ns=5),
            ".up_ns: is all of the period, so the network never splits",
        ),
        (Partition(groups=((0,), (1,)), one_way=1), ".one_way: expected True or False, found the number 1"),  # type: ignore[arg-type]
        (Isolate(rank=2), ".rank: rank 2 is outside the world of 2 ranks"),
        (Isolate(rank=0, start_ns=5, until_ns=5), ".until_ns: ends before it starts"),
    ],
)
def test_cuts_that_make_no_sense_are_refused(fault: Fault, problem: str) -> None:
    assert problems_of([fault], 2) == [f"faults[0]{problem}"]


def test_nobody_is_isolated_in_a_world_of_one_rank() -> None:
    assert problems_of([Isolate(rank=0)], 1) == ["faults[0]: a world of 1 rank has nobody to be cut off from"]


def test_a_file_has_periods_as_durations(tmp_path: Path) -> None:
    file = tmp_path / "flaps.toml"
    file.write_text(
        'title = "Flaps"\nworld_size = 3\nworkload = { target = "work:run" }\n'
        '[[faults]]\nkind = "partition"\ngroups = [[0], [1, 2]]\none_way = true\nperiod = "2s"\nup = "500ms"\n'
        '[[faults]]\nkind = "isolate"\nrank = 2\nhost = true\nuntil = "3s"\n'
    )

    assert load(str(file), import_target=False).faults == (
        Partition(groups=((0,), (1, 2)), one_way=True, period_ns=2_000 * MS, up_ns=500 * MS),
        Isolate(rank=2, host=True, until_ns=3_000 * MS),
    )


def test_a_cut_is_shown_as_the_call_that_makes_it() -> None:
    cut = Partition(groups=((0,), (1,)), one_way=True, period_ns=4, up_ns=1)

    assert repr(cut) == "Partition(groups=((0,), (1,)), one_way=True, period_ns=4, up_ns=1)"
