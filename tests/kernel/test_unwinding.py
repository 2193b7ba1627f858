"""The state of the interpreter after a task was forced to end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from simdist.kernel import Simulation, Task, _simulation
from simdist.kernel._unwinding import insist

STUBBORN = """
import sys, threading, time
from simdist.kernel import Simulation, _simulation

_simulation._GRACE_S, _simulation._COLLECTION_S, _simulation._BETWEEN_S = 0.02, 0.001, 0.005

def ends(again, trace):
    def swallow():
        while True:
            try:
                simulation.sleep(10**9)
            except BaseException:
                again()

    simulation = Simulation()
    simulation.spawn(swallow, "stubborn")
    simulation.spawn(lambda: simulation.sleep(1), "done")
    simulation.run_until(5)
    sys.settrace(trace)
    simulation.close()
    sys.settrace(None)
    leave.set()
    while len(sys._current_frames()) > 1:
        time.sleep(0.001)

    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    (lambda: None)()
    sys.setprofile(None)
    print(calls.count("call"))

leave = threading.Event()
ends(lambda: None, None)
ends(lambda: sum(range(100000)), None)
leave.clear()
ends(leave.wait, lambda *_: None)
"""


def test_a_profiler_works_after_a_task_was_made_to_end() -> None:
    # In CPython 3.11 the profiler hung at the first call. Such a hang can't be interrupted, so it has its own process.
    command = [sys.executable, "-c", STUBBORN]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.split() == ["1", "1", "1"], done.stderr


@pytest.mark.usefixtures("insistent")
def test_a_task_made_to_end_leaves_its_with_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    blocked = threading.Lock()

    def insist_and_unblock(task: Task) -> None:
        insist(task)
        if blocked.locked():
            blocked.release()

    def holds() -> None:
        try:
            simulation.sleep(10)
        except BaseException:
            with ExitStack() as outer, ExitStack() as inner:
                outer.callback(left.append, "outer")
                inner.callback(left.append, "inner")
                blocked.acquire()

    monkeypatch.setattr(_simulation, "insist", insist_and_unblock)
    blocked.acquire()
    simulation = Simulation()
    simulation.spawn(holds, "holds")
    simulation.run_until(5)

    assert simulation.close() == []
    assert left == ["inner", "outer"]


def test_a_callback_of_the_collector_is_not_struck() -> None:
    # An exception raised in the callback is lost, and printed. On a busy machine a collection may still be under way.
    entered, leaves, seen = threading.Event(), threading.Event(), []

    def reported(phase: str, info: dict[str, int]) -> None:
        entered.set()
        leaves.wait(10)
        seen.append(phase)

    thread = threading.Thread(target=reported, args=("stop", {}))
    task: Any = SimpleNamespace(calm=False, insisted=False, ident=None)
    gc.callbacks.append(reported)
    try:
        thread.start()
        assert entered.wait(10)
        task.ident = thread.ident
        insist(task)
        leaves.set()
        thread.join()
    finally:
        gc.callbacks.remove(reported)

    assert seen == ["stop"]
    assert not task.insisted
