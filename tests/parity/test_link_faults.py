"""Whole scenarios with link faults on real processes; `test_kills.py` has those that are killed.

Link faults need root, network namespaces and TUN devices; the reason for a skip says which of them is missing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simdist.faults import Fault, Isolate, LinkDelay, LinkLoss, LinkSlow, Partition
from simdist.hardware.compare._parity import check_parity
from simdist.hardware.links._namespaces import why_no_namespaces
from simdist.scenario import load

ROOT = Path(__file__).parents[2]
SCENARIO = str(ROOT / "scenarios" / "partition_outlasts_timeout.toml")
HEALS = str(ROOT / "scenarios" / "partition_heals.toml")  # two seconds of work, an all-reduce each 250 ms
MS = 1_000_000

pytestmark = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=f"no link faults on this machine: {why_no_namespaces()}"
)


def test_a_partition_of_real_processes_shows_what_the_simulation_shows() -> None:
    report = check_parity(load(SCENARIO))

    assert report is not None
    assert report.status == "parity", [point for point in report.points if not point.ok]
    assert report.not_replayed == ()
    assert all("Timed out waiting 3000ms" in point.real for point in report.points if point.name == "exception")


@pytest.mark.parametrize(
    "fault",
    [
        Partition(groups=((0, 1), (2, 3)), start_ns=500 * MS, until_ns=3_000 * MS, period_ns=800 * MS, up_ns=500 * MS),
        Isolate(rank=2, start_ns=500 * MS, until_ns=1_500 * MS),
        LinkDelay(src=0, dst=1, delay_ns=50 * MS, jitter_ns=40 * MS, tail_share=0.05, tail_ns=100 * MS),
        LinkLoss(src=0, dst=1, share=0.2),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_real_processes_get_over_a_network_that_is_in_trouble_for_a_while(fault: Fault) -> None:
    report = check_parity(replace(load(HEALS), faults=(fault,)))

    assert report is not None
    assert report.status == "parity", [point for point in report.points if not point.ok]
    assert report.not_replayed == ()
    for timing in report.timings:
        assert min(timing.simulated_s, *timing.real_s) > 2.5  # without the fault 2 s and the start


def test_large_messages_over_a_slow_link_take_as_long_as_in_the_simulation() -> None:
    plan = load(HEALS, overrides=["workload.kwargs.steps=3", "workload.kwargs.elements=250000"])
    report = check_parity(replace(plan, faults=(LinkSlow(src=0, dst=1, bandwidth=2_000_000),)))

    assert report is not None
    assert report.status == "parity", [point for point in report.points if not point.ok]
    assert report.not_replayed == ()
    for timing in report.timings:  # for 1 MB a ring sends 1.5 MB over each link, three times, plus 0.75 s of compute
        assert 2.8 < timing.simulated_s < 3.1
        assert all(2.6 < real_s < 5.0 for real_s in timing.real_s)  # a busy machine is slower
