"""Imported by the planted programs: the cause of nondeterminism may be in a module."""

from __future__ import annotations

import queue
import random
import secrets
import threading
import uuid
from time import perf_counter

RUN_NUMBER = uuid.uuid4().int % 10**6  # <- made_when_imported
GENERATOR = random.Random()  # <- generator_made_when_imported
BOX: queue.SimpleQueue[int] = queue.SimpleQueue()
_ticks = 0
_stop = threading.Event()
_ready = threading.Event()
_threads: list[threading.Thread] = []


class Parting:
    """An object in a cycle, which prints a line when it is collected."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        print("gone")  # <- finalizer_in_a_cycle


def microseconds() -> int:
    """Return the time, by a clock that this module took before the world began."""
    return int(perf_counter() * 1e6)


def ticks_of_a_thread() -> int:
    """Return how far the thread has counted."""
    return _ticks  # <- thread_outside


def start_thread() -> None:
    """Start a thread that reads the clock and fills a box, in parallel to any simulation."""
    if not _threads:
        _stop.clear()
        _ready.clear()
        _threads.append(threading.Thread(target=_count, name="counter", daemon=True))
        _threads[0].start()
        _ready.wait()


def stop_thread() -> None:
    """End the thread."""
    _stop.set()
    while _threads:
        _threads.pop().join()


def _count() -> None:
    global _ticks
    for number in range(secrets.randbelow(10_000)):  # without this two runs might find the same count by chance
        BOX.put(number)
    while not _stop.wait(0.0001):
        _ticks = int(perf_counter() * 1e6)
        BOX.put(_ticks)
        _ready.set()
