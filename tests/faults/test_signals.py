"""`Signal`: a program's handler gets it; without a handler the signal has its default effect."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

import simdist
from simdist.faults import Signal, problems_of

MS = 1_000_000


def handling() -> list[str]:
    found: list[str] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: found.append(f"{number} at {time.monotonic():.3f}"))
    for step in range(3):
        simdist.step(step)
        found.append(f"step {step}")
        time.sleep(0.010)
    return found


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ({"at_ns": 15 * MS}, ["step 0", "step 1", "10 at 0.015", "step 2"]),
        ({"at_step": 1}, ["step 0", "10 at 0.010", "step 1", "step 2"]),
        ({"at_step": 1, "every": 1}, ["step 0", "10 at 0.010", "step 1", "10 at 0.020", "step 2"]),
    ],
)
def test_a_handler_runs_when_the_signal_comes(trigger: dict[str, Any], expected: list[str]) -> None:
    result = simdist.run(handling, world_size=2, faults=[Signal(rank=1, signal="SIGUSR1", **trigger)])

    assert result.values[0] == ["step 0", "step 1", "step 2"]
    assert result.values[1] == expected
    assert result.ok
    assert result.faults[0].ended == ()


def test_without_a_handler_the_process_dies_of_it() -> None:
    result = simdist.run(lambda: time.sleep(1), world_size=2, faults=[Signal(rank=1, at_ns=5 * MS)])

    assert (result.ranks[1].status, result.ranks[1].exit_code) == ("killed", -signal.SIGTERM)
    assert result.faults[0].ended == ((1, 0, "killed"),)
    assert [event.data["text"] for event in result.events if event.kind == "fault"] == ["rank 1 gets SIGTERM"]


def test_some_signals_do_nothing_without_a_handler() -> None:
    result = simdist.run(lambda: time.sleep(1), world_size=1, faults=[Signal(rank=0, at_ns=5, signal="SIGWINCH")])

    assert result.ok
    assert result.virtual_time_ns == 1_000 * MS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SIGKILL", "faults[0].signal: no program handles SIGKILL; a crash does what it does"),
        ("SIGSTOP", "faults[0].signal: no program handles SIGSTOP; a hang does what it does"),
        ("TERM", "faults[0].signal: unknown signal 'TERM'; expected a name such as 'SIGTERM'"),
    ],
)
def test_a_signal_that_no_program_handles_is_refused(name: str, text: str) -> None:
    assert problems_of([Signal(rank=0, at_ns=1, signal=name)], 2) == [text]
