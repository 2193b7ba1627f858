"""Link faults on real processes: one scenario whole, and what is left when its launcher is killed in the middle.

They need root, network namespaces and TUN devices; the reason for a skip says which of them is missing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from simdist.hardware._namespaces import why_none
from simdist.hardware._parity import check_parity
from simdist.scenario import load

ROOT = Path(__file__).parents[2]
SCENARIO = str(ROOT / "scenarios" / "partition_outlasts_timeout.toml")

pytestmark = pytest.mark.skipif(bool(why_none()), reason=f"no link faults on this machine: {why_none()}")


def namespaces() -> Counter[str]:
    """How many processes are in which network namespace."""
    found: Counter[str] = Counter()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found[str(link.readlink())] += 1
        except OSError:  # gone meanwhile
            continue
    return found


def test_a_partition_of_real_processes_shows_what_the_simulation_shows() -> None:
    report = check_parity(load(SCENARIO))

    assert report is not None
    assert report.status == "parity", [point for point in report.points if not point.ok]
    assert report.not_replayed == ()
    assert all("Timed out waiting 3000ms" in point.real for point in report.points if point.name == "exception")


def test_a_launcher_that_is_killed_leaves_no_namespace() -> None:
    before = set(namespaces())
    words = [sys.executable, "-m", "simdist", "run", SCENARIO, "--real", "gloo"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as launcher:
        deadline = time.monotonic() + 60
        while len(set(namespaces()) - before) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        made = set(namespaces()) - before
        os.kill(launcher.pid, signal.SIGKILL)
    # The ranks run into their timeouts, and end.
    deadline = time.monotonic() + 60
    while set(namespaces()) & made and time.monotonic() < deadline:
        time.sleep(0.1)

    assert len(made) == 3
    assert not set(namespaces()) & made
