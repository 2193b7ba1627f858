"""Loops that only poll another thread, or a descriptor: time passes in them, and they end."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable

import pytest

import simdist


def after(call: Callable[..., object], *args: object) -> threading.Thread:
    """Start a thread that calls the function after 10 ms."""

    def body() -> None:
        time.sleep(0.01)
        call(*args)

    thread = threading.Thread(target=body)
    thread.start()
    return thread


def event() -> None:
    happened = threading.Event()
    after(happened.set)
    while not happened.is_set():
        pass


def thread() -> None:
    other = after(bool)
    while other.is_alive():
        pass


def empty_queue() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    after(waiting.put, 1)
    while waiting.empty():
        pass


def nothing_in_a_queue() -> None:
    waiting: queue.Queue[int] = queue.Queue()
    after(waiting.put, 1)
    while True:
        try:
            waiting.get_nowait()
            break
        except queue.Empty:
            pass


def selecting() -> None:
    mine, theirs = os.pipe()
    after(os.write, theirs, b"x")
    while not select.select([mine], [], [], 0)[0]:
        pass
    os.close(mine)
    os.close(theirs)


def polling() -> None:
    mine, theirs = os.pipe()
    after(os.write, theirs, b"x")
    with select.epoll() as poll:
        poll.register(mine, select.EPOLLIN)
        while not poll.poll(0):
            pass
    os.close(mine)
    os.close(theirs)


LOOPS = [event, thread, empty_queue, nothing_in_a_queue, selecting, polling]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_that_only_asks_gets_through_virtual_time(loop: Callable[[], None]) -> None:
    def body() -> float:
        loop()
        return time.monotonic()

    results = [simdist.run(body, world_size=2, stall_s=20) for _ in range(2)]

    assert all(0.01 <= value < 0.02 for value in results[0].values)
    assert results[0].digest == results[1].digest


def test_a_thread_that_computes_until_it_is_to_stop_takes_little_time() -> None:
    def body() -> float:
        stop = threading.Event()
        after(stop.set)
        steps = 0
        while not stop.is_set() and steps < 40_000:
            steps += 1
        return time.monotonic()

    assert simdist.run(body, world_size=1).values[0] < 0.01


def test_methods_are_pythons_again_after_the_world() -> None:
    before = [getattr(owner, name) for owner, name in ((threading.Event, "is_set"), (queue.Queue, "empty"))]
    codes = [method.__code__ for method in before]

    simdist.run(event, world_size=1).raise_for_failure()

    assert [method.__code__ for method in before] == codes
    assert (threading.Event.is_set, queue.Queue.empty) == tuple(before)
