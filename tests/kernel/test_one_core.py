from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from simdist.kernel import _core, one_core

Placed = tuple[set[int], int]

CHILD = "from simdist.kernel import one_core\nwith one_core() as core:\n    print(core)"


def placed() -> Placed:
    return os.sched_getaffinity(0), os.sched_getscheduler(0)


@contextmanager
def all_cores_claimed() -> Iterator[None]:
    """Claim every core, as other simulations do; waits for a core that a real simulation has for a moment."""
    patience = threading.Event()
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            claim = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            for _ in range(2000):
                try:
                    claim.bind(f"\0simdist.core.{core}")
                except OSError:
                    patience.wait(0.01)
                else:
                    break
        yield


def test_the_calling_thread_keeps_to_one_core_and_is_put_back() -> None:
    before = placed()

    with one_core() as core:
        inside = placed()

    assert inside == (before[0] if core is None else {core}, os.SCHED_BATCH)
    assert placed() == before


def test_threads_started_inside_share_the_core() -> None:
    found: list[Placed] = []

    with one_core():
        inside = placed()
        thread = threading.Thread(target=lambda: found.append(placed()))
        thread.start()
        thread.join()

    assert found == [inside]


def test_an_exception_puts_everything_back() -> None:
    before = placed()

    with pytest.raises(ValueError, match="x"), one_core():
        raise ValueError("x")

    assert placed() == before


def test_a_second_one_inside_stays_on_the_core_and_leaves_it_to_the_first() -> None:
    with one_core():
        outer = placed()
        with one_core():
            inner = placed()
        after = placed()

    assert outer == inner == after


def test_with_every_core_taken_nothing_is_pinned() -> None:
    before = placed()

    with all_cores_claimed(), one_core() as core:
        inside = placed()

    assert core is None
    assert inside == (before[0], os.SCHED_BATCH)
    assert placed() == before


def test_a_process_side_by_side_takes_another_core() -> None:
    with one_core() as ours:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the child has every core to choose from
        printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout

    assert ours is None or printed.strip() != str(ours)


def test_the_core_on_which_the_thread_runs_is_the_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = [90_001, 90_002, 90_003]  # no other process claims these
    monkeypatch.setattr(_core, "call", lambda name: cores[1])

    with ExitStack() as stack:
        chosen = []
        for _ in range(4):
            core, claim = _core._claim(cores)
            chosen.append(core)
            if claim is not None:
                stack.enter_context(closing(claim))

    assert chosen == [90_002, 90_001, 90_003, None]


def own_claims() -> list[str]:
    """Return the cores that this process has claimed, as the system lists them; others may claim cores meanwhile."""
    ours = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of iterdir itself
            ours.add(str(entry.readlink()))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = [words[7] for words in lines if len(words) > 7 and f"socket:[{words[6]}]" in ours]
    return [name.removeprefix("@simdist.core.") for name in names if name.startswith("@simdist.core.")]


def test_a_core_is_claimed_for_as_long_as_it_is_used() -> None:
    with one_core() as core:
        inside = own_claims()

    assert inside == ([] if core is None else [str(core)])
    assert own_claims() == []


def test_a_test_that_may_open_no_sockets_may_claim_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("a test tried to open a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    with one_core() as core:
        assert core is None or core in os.sched_getaffinity(0)
