"""A scenario with link faults on real processes, whole. What a killed one leaves is in `test_kills.py`.

Link faults need root, network namespaces and TUN devices; the reason for a skip says which of them is missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simdist.hardware.compare._parity import check_parity
from simdist.hardware.links._namespaces import why_no_namespaces
from simdist.scenario import load

ROOT = Path(__file__).parents[2]
SCENARIO = str(ROOT / "scenarios" / "partition_outlasts_timeout.toml")

pytestmark = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=f"no link faults on this machine: {why_no_namespaces()}"
)


def test_a_partition_of_real_processes_shows_what_the_simulation_shows() -> None:
    report = check_parity(load(SCENARIO))

    assert report is not None
    assert report.status == "parity", [point for point in report.points if not point.ok]
    assert report.not_replayed == ()
    assert all("Timed out waiting 3000ms" in point.real for point in report.points if point.name == "exception")
