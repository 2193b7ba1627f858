from __future__ import annotations

import gc
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

import simdist
from simdist.process import original
from simdist.process.stdlib._collector import host_froze
from tests.c10d.stores import FILE, dist
from tests.device.worlds import values


def test_a_world_of_many_ranks_collects_as_rarely_as_each_rank_would() -> None:
    before = gc.get_threshold()

    result = simdist.run(lambda: (original(gc.get_threshold)(), gc.get_threshold()), world_size=3)

    assert result.values == [((3 * before[0], *before[1:]), before)] * 3
    assert gc.get_threshold() == before


def test_the_factor_has_a_limit() -> None:
    before = gc.get_threshold()

    result = simdist.run(lambda: original(gc.get_threshold)()[0], world_size=1_100)

    assert set(result.values) == {1_000 * before[0]}


def test_what_a_rank_sets_is_set_while_the_world_lives() -> None:
    before = gc.get_threshold()

    def main() -> tuple[int, ...]:
        gc.set_threshold(1_234, 5, 6)
        return gc.get_threshold()

    result = simdist.run(main, world_size=2, isolate=False)

    assert result.values == [(1_234, 5, 6)] * 2
    assert gc.get_threshold() == before


def test_a_world_that_fails_puts_it_back() -> None:
    before = gc.get_threshold()

    def broken(rank: int, time_ns: int, stream: str, line: str) -> None:
        raise LookupError(line)

    with pytest.raises(LookupError):
        simdist.run(lambda: print("x"), world_size=2, echo=broken)
    assert gc.get_threshold() == before


def test_what_was_there_before_a_world_with_devices_is_frozen_meanwhile() -> None:
    inside = values(gc.get_freeze_count, world_size=2)

    assert min(inside) > 10_000  # else a collection would visit all of torch
    assert not host_froze()


_GARBAGE_BETWEEN_WORLDS = """
import gc, weakref
from simdist.process.stdlib._collector import collector_of

class Garbage:
    def __init__(self, size):
        self.me, self.more = self, [[None] for _ in range(size)]

def left_after(threshold):
    gc.collect()
    size = len(gc.get_objects()) // 8  # Python collects everything once a quarter of it is new since the last time
    left = weakref.WeakSet()
    gc.set_threshold(1_000_000, 10, threshold)  # and not before so many worlds
    for _ in range(3):
        garbage = Garbage(size)
        left.add(garbage)
        with collector_of(2, in_rounds=True):
            pass
        del garbage
    return len(left)

print(left_after(1) < 3, left_after(10_000) < 3)
"""


def test_garbage_between_worlds_with_devices_is_found_by_pythons_own_rule() -> None:
    # In its own process, without torch: full collections of all that pytest has take seconds.
    done = subprocess.run([sys.executable, "-c", _GARBAGE_BETWEEN_WORLDS], capture_output=True, text=True)

    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_host_without_a_collector_has_none_when_a_world_begins() -> None:
    me: list[object] = []
    me.append(me)
    mark: set[int] = set()
    me.append(mark)
    ended = weakref.finalize(mark, lambda: None)
    gc.disable()
    try:
        del me, mark
        values(lambda: None, world_size=2)
        assert ended.alive
    finally:
        gc.enable()


def test_what_the_host_has_frozen_stays_frozen() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        inside = values(gc.get_freeze_count, world_size=2)

        assert max(inside) - min(inside) < 100
        assert gc.get_freeze_count() > 0.9 * before
    finally:
        gc.unfreeze()


def _until_the_pipe_closes(here: Connection, there: Connection) -> None:
    there.close()
    with pytest.raises(EOFError):
        here.recv()


def _leaves_a_pipe_in_garbage() -> int:
    processes = multiprocessing.get_context("fork")
    here, there = processes.Pipe()
    child = processes.Process(target=_until_the_pipe_closes, args=(here, there))
    child.start()
    garbage: list[object] = [there]
    garbage.append(garbage)
    del garbage, there
    kept: list[object] = [[number] for number in range(10_000)]
    time.sleep(1)
    return len(kept)


def _leaves_a_socket_in_garbage() -> float:
    here, there = socket.socketpair()
    ended: list[float] = []

    def read() -> None:
        here.recv(1)
        ended.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    began = time.monotonic()
    garbage: list[object] = [there]
    garbage.append(garbage)
    del garbage, there
    kept: list[object] = [[number] for number in range(10_000)]
    time.sleep(1)
    assert len(kept) == 10_000
    gc.collect()
    reader.join()
    here.close()
    return ended[0] - began


def _leaves_a_file_store_in_garbage() -> list[bool]:
    store = dist.FileStore(FILE, 1)
    store.set("key", "value")
    garbage: list[object] = [store]
    garbage.append(garbage)
    del garbage, store
    kept: list[object] = [[number] for number in range(10_000)]
    found = [dist.FileStore(FILE, 2).check(["key"])]
    assert len(kept) == 10_000
    return found


@pytest.mark.usefixtures("threshold", "small_heap")
def test_file_stores_close_in_rounds_whenever_the_host_would_look() -> None:
    assert simdist.run(_leaves_a_file_store_in_garbage, world_size=1).values == [[True]]


@pytest.fixture(params=[100, 1_000_000])
def threshold(request: pytest.FixtureRequest) -> Iterator[int]:
    """The host's threshold of the garbage collector, in objects."""
    before = gc.get_threshold()
    gc.set_threshold(request.param, 10, 10)
    yield request.param
    gc.set_threshold(*before)


def test_pipes_to_children_close_in_rounds_whenever_the_host_would_look(threshold: int) -> None:
    result = simdist.run(_leaves_a_pipe_in_garbage, world_size=1)

    assert gc.get_threshold() == (threshold, 10, 10)
    assert [event.time_ns for event in result.events if event.kind == "child-exit"] == [1_000_000_002]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("threshold", "small_heap")
def test_sockets_close_in_rounds_whenever_the_host_would_look() -> None:
    (after_s,) = simdist.run(_leaves_a_socket_in_garbage, world_size=1, stall_s=10).values

    assert after_s == pytest.approx(1, abs=0.01)  # at the program's own collection, and not before


def test_callbacks_of_the_host_are_not_called_on_ranks() -> None:
    called: list[float] = []

    def look(phase: str, info: dict[str, int]) -> None:
        called.append(time.perf_counter())

    def main() -> int:
        gc.collect(0)
        return len(gc.callbacks)

    gc.callbacks.append(look)
    try:
        before = list(gc.callbacks)
        result = simdist.run(main, world_size=2)
        after = list(gc.callbacks)
    finally:
        gc.callbacks.remove(look)

    assert (result.values, called, after) == ([0, 0], [], before)


def test_a_rank_may_ask_to_be_called() -> None:
    def main() -> list[str]:
        phases: list[str] = []

        def look(phase: str, info: dict[str, int]) -> None:
            phases.append(phase)

        gc.callbacks.append(look)
        gc.collect(0)
        gc.callbacks.remove(look)
        return phases

    assert simdist.run(main, world_size=1).values == [["start", "stop"]]
