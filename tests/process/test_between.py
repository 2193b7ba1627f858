"""Exceptions that a thread raises in another one, and functions that it has the main thread call."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values


class Stop(Exception):
    pass


def raise_in(ident: int, error: object = Stop) -> int:
    return int(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error)))


def later(seconds: float, function: Callable[[], object]) -> threading.Thread:
    def wait() -> None:
        time.sleep(seconds)
        function()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def stopped_at(wait: Callable[[], object], after: float = 0.25) -> float:
    """When the exception arrives that another thread raises after some seconds."""
    main = threading.get_ident()
    begun = time.monotonic()
    thread = later(after, lambda: raise_in(main))
    try:
        for _ in range(100):
            wait()
    except Stop:
        return time.monotonic() - begun
    finally:
        thread.join()
    return -1


def take_nothing() -> None:
    with contextlib.suppress(queue.Empty):
        queue.Queue[int]().get(timeout=1)


@pytest.mark.parametrize(
    "wait", [lambda: time.sleep(1), lambda: threading.Event().wait(1), take_nothing], ids=["sleep", "event", "queue"]
)
def test_it_arrives_when_the_wait_of_the_thread_is_over(wait: Callable[[], object]) -> None:
    assert simdist.run(lambda: stopped_at(wait), world_size=1).values == [pytest.approx(1.0, rel=1e-3)]


def test_it_arrives_after_a_collective() -> None:
    def body() -> float:
        dist.init_process_group("gloo")

        def wait() -> None:
            if dist.get_rank() == 1:
                time.sleep(1)
            dist.all_reduce(torch.ones(1))

        if dist.get_rank() == 0:
            return stopped_at(wait)
        wait()
        return 0

    assert values(body, 2)[0] == pytest.approx(1.0, rel=1e-3)


def test_a_thread_that_raises_it_until_it_is_seen_ends() -> None:
    def body() -> bool:
        main, seen = threading.get_ident(), threading.Event()

        def insist() -> None:
            while not seen.is_set():
                raise_in(main)

        thread = threading.Thread(target=insist)
        try:
            thread.start()
            while True:
                time.sleep(1e-6)
        except Stop:
            seen.set()
        while thread.is_alive():
            with contextlib.suppress(Stop):
                thread.join()
        return thread.is_alive()

    assert simdist.run(body, world_size=1).values == [False]


def test_a_lock_for_which_the_thread_waited_stays_free() -> None:
    def body() -> tuple[str, bool]:
        lock, found = threading.Lock(), []

        def wait() -> None:
            try:
                with lock:
                    found.append("taken")
            except Stop:
                found.append("stopped")

        with lock:
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.1)
            raise_in(thread.ident or 0)
            time.sleep(0.1)
        thread.join()
        return found[0], lock.acquire(timeout=1)

    assert simdist.run(body, world_size=1).values == [("stopped", True)]


def test_only_threads_of_the_same_process_are_found() -> None:
    def body() -> list[int]:
        dist.init_process_group("gloo")
        mine = threading.get_ident()
        threads = [0, 0]
        dist.all_gather_object(threads, mine)
        other = next(each for each in threads if each != mine)
        done = threading.Thread(target=lambda: None)
        done.start()
        done.join()
        return [raise_in(other), raise_in(12345), raise_in(done.ident or 0)]

    assert values(body, 2) == [[0, 0, 0]] * 2


@pytest.mark.parametrize("nothing", [None, 0])
def test_nothing_takes_it_back_and_what_is_no_class_is_refused(nothing: object) -> None:
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def body() -> list[object]:
        main, found = threading.get_ident(), list[object]()

        def change() -> None:
            found.extend((raise_in(main), ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), nothing)))

        later(0.1, change)
        time.sleep(1)
        later(0.1, lambda: raise_in(main, Stop("an object")))
        with pytest.raises(SystemError, match=r"^_PyErr_SetObject: exception Stop\('an object'\) is not a BaseExc"):
            time.sleep(1)
        return found

    assert simdist.run(body, world_size=1).values == [[1, 1]]
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc is set_exception


@pytest.fixture
def callback() -> tuple[list[str], object]:
    calls: list[str] = []

    def call(argument: int) -> int:
        calls.append(threading.current_thread().name)
        return 0

    return calls, ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)


def test_the_main_thread_makes_a_pending_call(callback: tuple[list[str], object]) -> None:
    calls, function = callback

    def body() -> list[int]:
        found: list[int] = []

        def add() -> None:
            found.extend(ctypes.pythonapi.Py_AddPendingCall(function, None) for _ in range(33))

        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
        time.sleep(0.1)
        return found

    assert simdist.run(body, world_size=1).values == [[0] * 32 + [-1]]
    assert calls == ["MainThread"] * 32
