"""Tasks that keep the GIL: only C code in the process can report them, so they run in separate processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simdist.kernel import Simulation

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such timers")

SIGNAL = 62
PROGRAM = """
import ctypes, faulthandler, re, sys
from simdist.kernel import Simulation, _lock_watch

_lock_watch._LEAST_S, _lock_watch._REPEAT_S = 0.5, {repeat_s}


def backtracks():
    re.match(r"(a+)+$", "a" * 60 + "b")


def waits_with_the_lock():
    ctypes.PyDLL(None).usleep(1_500_000)


simulation = Simulation(stall_s=0.1)
simulation.spawn(lambda: simulation.sleep(1_000_000), "sleeps")
simulation.spawn({body}, "rank 7")
simulation.run()
print(simulation.close(), [task.error for task in simulation.tasks])
"""


def run(body: str, repeat_s: int) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(body=body, repeat_s=repeat_s)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def caught() -> int:
    """Return the signals for which the process has handlers, as bits."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigCgt")]
    return int(line.split()[1], 16)


def timers() -> str:
    """Return the timers that the operating system keeps for the process."""
    path = Path("/proc/self/timers")
    return path.read_text() if path.exists() else ""


@pytest.mark.real
def test_a_task_that_keeps_the_lock_is_reported_and_ends_the_process() -> None:
    ended = run("backtracks", repeat_s=1)

    assert ended.returncode == -SIGNAL
    stacks = ended.stderr.split("\n\n")
    (own,) = [stack for stack in stacks if stack.rstrip().endswith("in rank 7")]
    (host,) = [stack for stack in stacks if "in wait\n" in stack]
    assert "in backtracks\n" in own
    assert (
        "in simdist: a rank has kept the GIL for 0.5 s of real time, so that nothing else of this process could "
        "run, and the process ends unless it gives the lock back within 1 s; "
    ) in host
    assert "larger stall_s\n" in host


@pytest.mark.real
def test_a_task_that_gives_the_lock_back_after_the_report_goes_on() -> None:
    ended = run("waits_with_the_lock", repeat_s=100)

    assert ended.returncode == 0
    assert "in waits_with_the_lock\n" in ended.stderr
    assert ended.stdout == "[] [None, None]\n"


@pytest.mark.real
def test_a_world_leaves_neither_timer_nor_handler() -> None:
    before = caught(), timers(), signal.getsignal(SIGNAL)
    inside: list[tuple[int, str]] = []
    simulation = Simulation()
    simulation.spawn(lambda: inside.append((caught(), timers())), "looks")

    simulation.run()
    simulation.close()

    assert (caught(), timers(), signal.getsignal(SIGNAL)) == before
    assert inside[0][0] == before[0] | 1 << (SIGNAL - 1)
    assert inside[0][1] != before[1] or not Path("/proc/self/timers").exists()


@pytest.mark.real
def test_a_signal_that_the_program_uses_itself_is_left_alone() -> None:
    own = signal.signal(SIGNAL, lambda number, frame: None)
    inside: list[object] = []
    simulation = Simulation()
    simulation.spawn(lambda: inside.append(signal.getsignal(SIGNAL)), "looks")
    try:
        handler = signal.getsignal(SIGNAL)
        simulation.run()
        simulation.close()

        assert inside == [handler]
        assert signal.getsignal(SIGNAL) is handler
    finally:
        signal.signal(SIGNAL, own)
