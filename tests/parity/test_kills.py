"""Real runs whose starter is killed leave nothing behind. `tools/kill_runs.py` kills hundreds of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from simdist.errors import SimdistError
from simdist.hardware._keeper import Keeper, descendants
from simdist.hardware.links._namespaces import why_no_namespaces
from tools.kill_runs import kill, real_run

# Orphans of orphans: each process loses its parent at once, and has its own session.
DOUBLE_FORK = """
import os, sys, time
if os.fork():
    time.sleep(60)
os.setsid()
if os.fork():
    os._exit(0)
sys.stdout.write(f"{os.getpid()}\\n")
sys.stdout.flush()
time.sleep(60)
"""

# A run has a starter, a keeper, an agent and three supervisors with their ranks; with link faults the wire, too.
CASES = [
    ("plain", signal.SIGKILL, 3),
    ("crash", signal.SIGINT, 9),
    ("hang", signal.SIGKILL, 9),
    ("restarts", signal.SIGTERM, 6),
    pytest.param(
        "links",
        signal.SIGKILL,
        10,
        marks=pytest.mark.skipif(
            bool(why_no_namespaces()), reason=f"no link faults on this machine: {why_no_namespaces()}"
        ),
    ),
    ("parity", signal.SIGINT, 5),
]


@pytest.mark.parametrize(("kind", "number", "processes"), CASES)
def test_a_killed_run_leaves_nothing(kind: str, number: signal.Signals, processes: int) -> None:
    killed = kill(kind, number, 0.5, processes=processes)

    assert killed.problems == []
    assert killed.processes > 1
    assert killed.code == (130 if number is signal.SIGINT else -number)
    assert killed.stderr == ("interrupted\n" if number is signal.SIGINT else "")


def test_what_was_left_would_be_found() -> None:
    with real_run("plain") as run:
        deadline = time.monotonic() + 60
        while run.look() < 3 and time.monotonic() < deadline:
            time.sleep(0.1)

        left = run.left()

    assert any("_agent" in line for line in left)
    assert any(line.startswith("temporary file") for line in left)


def orphan_under(keeper: Keeper, said: Path) -> int:
    """Start a process under the keeper whose parent ends; returns its pid."""
    with said.open("wb") as stream:
        keeper.start([sys.executable, "-c", DOUBLE_FORK], stdout=stream.fileno())
    deadline = time.monotonic() + 30
    while not said.read_text().endswith("\n") and time.monotonic() < deadline:
        time.sleep(0.01)
    return int(said.read_text())


@pytest.mark.parametrize("whole", [False, True])
def test_a_keeper_ends_those_too_that_have_left_their_parents(whole: bool, tmp_path: Path) -> None:
    with Keeper() as keeper:
        folder = keeper.folder
        (folder / "file").touch()
        orphan = orphan_under(keeper, tmp_path / "said")
        before = descendants(keeper.pid)
        if not whole:
            keeper.end()
            assert folder.is_dir()
            assert descendants(keeper.pid) == []

    assert orphan in before
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    assert not folder.exists()


def test_what_a_keeper_has_started_dies_with_it() -> None:
    with Keeper() as keeper:
        folder = keeper.folder
        child = keeper.start([sys.executable, "-c", "import time; time.sleep(60)"])
        assert not keeper.wait(child, 0.1)
        os.kill(keeper.pid, signal.SIGKILL)

        with pytest.raises(SimdistError, match="has been killed"):
            keeper.wait(child, 30)
        deadline = time.monotonic() + 30
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    assert not Path(f"/proc/{child}").exists()
    assert not folder.exists()


def test_a_keeper_reports_a_child_that_has_ended(tmp_path: Path) -> None:
    with Keeper(tmp_path) as keeper:
        child = keeper.start([sys.executable, "-c", "pass"])

        assert keeper.wait(child, 30)
    assert tmp_path.is_dir()
