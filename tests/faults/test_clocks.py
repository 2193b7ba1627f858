from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.cluster import build
from simdist.faults import ClockSkew, Crash, Machine, problems_of
from simdist.scenario import load
from simdist.testing import Sim
from tests.faults.programs import MS, events_of, run

SECOND = 1_000 * MS
EPOCH_NS = 1_767_225_600 * SECOND  # 2026-01-01, when virtual time is 0
TWO_HOSTS = build(4, hosts=2)


def offsets(*, until_s: int = 4) -> list[int]:
    """Return by how much `time.time_ns` is wrong at each second."""
    found = []
    for second in range(until_s):
        time.sleep(max(0.0, second - time.monotonic()))
        found.append(time.time_ns() - EPOCH_NS - second * SECOND)
    return found


def test_a_clock_is_wrong_for_a_time_and_all_ranks_of_its_host_see_it() -> None:
    skew = ClockSkew(rank=3, offset_ns=-7 * SECOND, start_ns=SECOND, until_ns=3 * SECOND)
    result = simdist.run(offsets, world_size=4, cluster=TWO_HOSTS, faults=[skew])

    wrong = [0, -7 * SECOND, -7 * SECOND, 0]
    assert result.values == [[0] * 4, [0] * 4, wrong, wrong]
    (event,) = events_of(result, "fault")
    assert (event.time_ns, event.rank) == (SECOND, 3)
    assert event.data["text"] == "the wall clock of rank 3's host is 7000 ms behind"


def test_a_clock_that_drifts_gains_more_and_more_and_two_faults_add_up() -> None:
    drift = ClockSkew(rank=0, offset_ns=5, drift_ppm=100, start_ns=SECOND)
    back = ClockSkew(rank=0, drift_ppm=-30)
    result = simdist.run(offsets, world_size=1, faults=[drift, back])

    assert result.values == [[0, 5 - 30_000, 100_005 - 60_000, 200_005 - 90_000]]
    assert [event.data["text"] for event in events_of(result, "fault")] == [
        "the wall clock of rank 0's host loses 30 us per second",
        "the wall clock of rank 0's host is 5e-06 ms ahead and gains 100 us per second",
    ]


@pytest.mark.parametrize("isolate", [False, True])
def test_everything_with_a_calendar_is_wrong_and_counting_clocks_are_right(isolate: bool) -> None:
    def body() -> tuple[float, ...]:
        return (
            round(time.time() * 1e3 - EPOCH_NS / MS),
            round(time.clock_gettime(time.CLOCK_REALTIME) * 1e3 - EPOCH_NS / MS),
            round(datetime.datetime.now(datetime.UTC).timestamp() * 1e3 - EPOCH_NS / MS),
            time.gmtime().tm_mday,
            datetime.datetime.now(datetime.UTC).day,
            round(time.monotonic() * 1e3),
            round(time.perf_counter() * 1e3),
            round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e3),
        )

    def waits() -> tuple[float, ...]:
        time.sleep(0.25)
        return body()

    two_days_ns = 2 * 86_400 * SECOND
    result = simdist.run(waits, world_size=1, faults=[ClockSkew(rank=0, offset_ns=two_days_ns)], isolate=isolate)

    ahead_ms = two_days_ns // MS + 250
    assert result.values == [(ahead_ms, ahead_ms, ahead_ms, 3, 3, 250, 250, 250)]


@pytest.mark.parametrize("isolate", [False, True])
def test_a_clock_that_is_set_back_during_a_sleep_does_not_make_it_longer(isolate: bool) -> None:
    def body() -> tuple[int, int, int]:
        before_s, began_ns = time.time(), time.monotonic_ns()
        time.sleep(1)
        after_s, took_ns = time.time(), time.monotonic_ns() - began_ns
        time.sleep(1)
        return round(after_s - before_s), round(time.time() - after_s), round(took_ns / MS)

    back = ClockSkew(rank=0, offset_ns=-3_600 * SECOND, start_ns=SECOND // 2)
    result = simdist.run(body, world_size=1, faults=[back], isolate=isolate)

    assert result.values == [(-3_599, 1, 1_000)]
    assert result.virtual_time_ns < 2 * SECOND + MS


def test_operations_and_their_timeouts_do_not_look_at_the_wall_clock() -> None:
    skew = ClockSkew(rank=1, offset_ns=3_600 * SECOND, start_ns=2 * MS)

    assert run(skew).values == run().values
    assert run(skew, Crash(rank=1, nth=2)).virtual_time_ns == run(Crash(rank=1, nth=2)).virtual_time_ns


def test_files_have_the_time_of_the_host_that_wrote_them(tmp_path: Path) -> None:
    def body() -> list[int]:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        (tmp_path / f"{rank}").write_text("here")
        dist.barrier()
        return [(tmp_path / f"{each}").stat().st_mtime_ns // (3_600 * SECOND) for each in range(4)]

    result = simdist.run(
        body, world_size=4, cluster=TWO_HOSTS, faults=[ClockSkew(rank=2, offset_ns=-2 * 3_600 * SECOND)]
    )

    hour = EPOCH_NS // (3_600 * SECOND)
    assert result.values == [[hour, hour, hour - 2, hour - 2]] * 4


def test_a_clock_stays_wrong_over_a_restart() -> None:
    def body() -> int:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
        time.sleep(1)
        return (time.time_ns() - EPOCH_NS - time.monotonic_ns()) // MS

    faults = [ClockSkew(rank=0, offset_ns=9 * MS), Crash(rank=1, at_ns=SECOND // 2)]
    result = simdist.run(body, world_size=2, faults=faults, max_restarts=1)

    assert result.restarts == 1
    assert result.values == [9, 9]


def test_a_clock_is_right_from_when_the_fault_is_lifted(sim: Sim) -> None:
    skew = sim.give(ClockSkew(rank=0, offset_ns=5 * MS))
    with sim.start(offsets, world_size=1) as world:
        world.advance("1.5s")
        skew.lift()
        result = world.finish()

    assert result.values == [[5 * MS, 5 * MS, 0, 0]]
    assert events_of(result, "fault")[-1].data["text"] == "the wall clock of rank 0's host is right again"


def test_a_file_says_which_way_a_clock_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "skew.toml").write_text(
        'title = "A clock"\nworld_size = 2\n[workload]\ntarget = "os:getcwd"\n'
        '[[faults]]\nkind = "clock_skew"\nrank = 1\noffset = "-1.5s"\ndrift_ppm = 20\nstart = "2s"\n'
    )

    assert load(str(tmp_path / "skew.toml")).faults == (
        ClockSkew(rank=1, offset_ns=-1_500 * MS, drift_ppm=20, start_ns=2 * SECOND),
    )


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (ClockSkew(rank=0), "faults[0].offset_ns: nothing makes the clock wrong; give offset_ns or drift_ppm"),
        (ClockSkew(rank=2, offset_ns=1), "faults[0].rank: rank 2 is outside the world of 2 ranks"),
        (
            ClockSkew(rank=0, drift_ppm=-2e6),
            "faults[0].drift_ppm: -2e+06 ppm is no drift; expected more than -1000000, and at most 1000000",
        ),
        (
            ClockSkew(rank=0, offset_ns=-(2**63)),
            "faults[0].offset_ns: 9223372036854775808 ns is longer than virtual time can be (292 years)",
        ),
        (
            ClockSkew(rank=0, offset_ns=1.5),  # type: ignore[arg-type]
            "faults[0].offset_ns: expected nanoseconds, a whole number, found the number 1.5",
        ),
        (ClockSkew(rank=0, offset_ns=1, start_ns=5, until_ns=5), "faults[0].until_ns: ends before it starts"),
    ],
)
def test_what_is_wrong_with_a_clock_fault_is_said(fault: ClockSkew, problem: str) -> None:
    assert problems_of([fault], 2) == [problem]


def test_real_processes_share_the_clock_of_their_machine() -> None:
    assert ClockSkew(rank=0, offset_ns=1).real_obstacle(Machine("gloo", 1, 0)) == (
        "real processes share the clock of the machine, and setting it would strike everything else that runs there"
    )
