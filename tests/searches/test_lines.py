"""New lines of the program that run after a fault count as something new that a plan reached."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import simdist
from simdist.faults import Fault, Raise, SlowRank
from simdist.searches._lines import LinesAfterFaults
from simdist.world import observed_by

NAME = Path(__file__).name
MS = 1_000_000


def recovers() -> int:
    dist.init_process_group("gloo")
    seen = 0
    try:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            seen += 1
    except OSError:
        seen = helped()
    return seen


def helped() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(in_a_thread()))
    thread.start()
    thread.join()
    return found[0]


def in_a_thread() -> int:
    time.sleep(0.001)
    return -1


def lines_of(function: Callable[..., object], *texts: str) -> set[str]:
    """Return the places of the lines with these texts."""
    code = function.__code__
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    within = range(code.co_firstlineno, max(line for _, _, line in code.co_lines() if line) + 1)
    return {f"{NAME}:{n}" for n in within if any(text in source[n - 1] for text in texts)}


def passed(*faults: Fault) -> set[tuple[str, str]]:
    with observed_by(LinesAfterFaults()) as lines:
        simdist.run(recovers, world_size=2, faults=faults)
    return {(where, fault) for where, fault in lines.passed if where.startswith(NAME)}


def test_the_lines_by_which_a_program_recovers_count() -> None:
    found = passed(Raise(rank=1, op="all_reduce", nth=1, error="OSError"))

    expected = lines_of(recovers, "except OSError", "seen = helped()", "return seen")
    expected |= lines_of(helped, "thread = ", "start()", "join()")
    if sys.version_info >= (3, 12):
        expected |= lines_of(in_a_thread, "sleep", "return")
    assert {where for where, _ in found} >= expected
    assert {fault for _, fault in found} == {"raise"}
    assert not {where for where, _ in found} & lines_of(recovers, "init_process_group", "seen = 0")


def test_lines_before_a_fault_do_not_count_nor_without_one() -> None:
    assert passed() == set()
    assert passed(SlowRank(rank=0, delay_ns=MS, start_ns=10**15, optional=True)) == set()


def test_a_line_counts_with_the_fault_that_struck_last_before() -> None:
    slow = SlowRank(rank=0, delay_ns=MS)
    found = passed(slow, Raise(rank=1, op="all_reduce", nth=2, error="OSError"))

    assert {fault for _, fault in found} == {"slow_rank", "raise"}
    assert {fault for where, fault in found if where in lines_of(recovers, "except OSError")} == {"raise"}


def of_the_host(ended: threading.Event) -> None:
    while not ended.is_set():
        pass


def test_lines_of_the_hosts_other_threads_do_not_count() -> None:
    def computes() -> int:
        try:
            recovers()
        finally:
            result = sum(range(1_000_000))  # for so long that the other thread gets the interpreter lock
        return result

    ended = threading.Event()
    thread = threading.Thread(target=of_the_host, args=(ended,))
    thread.start()
    try:
        with observed_by(LinesAfterFaults()) as lines:
            simdist.run(computes, world_size=2, faults=[Raise(rank=1, op="all_reduce", nth=1, error="OSError")])
    finally:
        ended.set()
        thread.join()

    found = {where for where, _ in lines.passed}
    assert found >= lines_of(computes, "result = sum")
    assert not found & lines_of(of_the_host, "while", "pass")


def test_nothing_is_traced_or_monitored_afterwards() -> None:
    before = sys.gettrace()
    for _ in range(8):  # more often than there are tools
        assert passed(Raise(rank=1, op="all_reduce", nth=1, error="OSError"))

    assert sys.gettrace() is before
    if sys.version_info >= (3, 12):
        assert "simdist looks for new lines" not in [sys.monitoring.get_tool(tool) for tool in range(6)]
