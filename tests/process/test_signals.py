"""Signals that a rank handles: when its handler runs, and how it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.c10d.worlds import values
from tests.process.alone import alone

SECOND = 1_000_000_000


def value(body: Callable[[], Any]) -> Any:
    return values(body, 1)[0]


def rank_of() -> int:
    return int(os.environ["RANK"])


def test_a_handler_is_called_on_the_main_thread_with_number_and_frame() -> None:
    def body() -> tuple[Any, ...]:
        seen: list[Any] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, frame is not None)))
        os.kill(os.getpid(), signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        return before, seen, callable(signal.getsignal(signal.SIGTERM)), signal.getsignal(signal.SIGUSR1)

    host = signal.getsignal(signal.SIGTERM)

    assert value(body) == (signal.SIG_DFL, [(15, True), (15, True)], True, signal.SIG_DFL)
    assert signal.getsignal(signal.SIGTERM) is host


def test_a_sleep_is_interrupted_and_goes_on_to_its_end() -> None:
    def body() -> list[tuple[str, int]]:
        log: list[tuple[str, int]] = []
        if rank_of() == 1:
            time.sleep(1)
            os.kill(os.getpid() - 1, signal.SIGUSR1)
            return log
        signal.signal(signal.SIGUSR1, lambda *_: log.append(("handler", time.monotonic_ns())))
        time.sleep(3)
        log.append(("slept", time.monotonic_ns()))
        return log

    assert simdist.run(body, world_size=2).values[0] == [("handler", SECOND), ("slept", 3 * SECOND)]


@pytest.mark.parametrize("what", ["lock", "event", "queue", "join"])
def test_a_wait_for_a_thread_is_interrupted_and_goes_on(what: str) -> None:
    def body() -> list[tuple[str, int]]:
        import queue

        log: list[tuple[str, int]] = []
        signal.signal(signal.SIGALRM, lambda *_: log.append(("handler", time.monotonic_ns())))
        lock, event, things = threading.Lock(), threading.Event(), queue.Queue[int]()
        lock.acquire()

        def later() -> None:
            time.sleep(3)
            lock.release()
            event.set()
            things.put(1)

        thread = threading.Thread(target=later)
        thread.start()
        signal.alarm(1)
        waits: dict[str, Callable[[], Any]] = {
            "lock": lock.acquire,
            "event": event.wait,
            "queue": things.get,
            "join": thread.join,
        }
        waits[what]()
        log.append(("waited", time.monotonic_ns()))
        return log

    assert value(body) == [("handler", SECOND), ("waited", 3 * SECOND)]


def test_what_a_handler_raises_ends_the_wait() -> None:
    def expired(number: int, frame: object) -> None:
        raise TimeoutError("too slow")

    def body() -> tuple[str, int]:
        signal.signal(signal.SIGALRM, expired)
        signal.alarm(2)
        with pytest.raises(TimeoutError) as caught:
            time.sleep(100)
        return str(caught.value), time.monotonic_ns()

    assert value(body) == ("too slow", 2 * SECOND)


def test_an_operation_is_not_interrupted_and_the_handler_runs_after_it() -> None:
    def body() -> list[tuple[str, int]]:
        log: list[tuple[str, int]] = []
        dist.init_process_group("gloo")
        begin_ns = time.monotonic_ns()
        if rank_of() == 1:
            time.sleep(1)
            os.kill(os.getpid() - 1, signal.SIGUSR1)
            time.sleep(1)
        else:
            signal.signal(
                signal.SIGUSR1, lambda *_: log.append(("handler", (time.monotonic_ns() - begin_ns) // SECOND))
            )
        dist.all_reduce(torch.ones(1))
        log.append(("reduced", (time.monotonic_ns() - begin_ns) // SECOND))
        return log

    assert simdist.run(body, world_size=2).values[0] == [("handler", 2), ("reduced", 2)]


def test_an_interrupt_of_another_rank_is_a_keyboard_interrupt() -> None:
    def body() -> int:
        if rank_of() == 1:
            time.sleep(1)
            os.kill(os.getpid() - 1, signal.SIGINT)
            return 0
        with pytest.raises(KeyboardInterrupt):
            signal.pause()
        return time.monotonic_ns()

    assert simdist.run(body, world_size=2).values == [SECOND, 0]


def test_an_interrupt_ends_a_sleep_of_who_has_set_no_handler() -> None:
    def body() -> tuple[str, int]:
        if rank_of() == 1:
            time.sleep(1)
            os.kill(os.getpid() - 1, signal.SIGINT)
            return "", 0
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            return "interrupted", time.monotonic_ns()
        return "slept", time.monotonic_ns()

    assert simdist.run(body, world_size=2).values[0] == ("interrupted", SECOND)


def test_a_handler_of_interrupts_runs_in_the_middle_of_a_sleep() -> None:
    def body() -> list[int]:
        log: list[int] = []
        if rank_of() == 1:
            time.sleep(1)
            os.kill(os.getpid() - 1, signal.SIGINT)
            return log
        signal.signal(signal.SIGINT, lambda *_: log.append(time.monotonic_ns()))
        time.sleep(3)
        return [*log, time.monotonic_ns()]

    assert simdist.run(body, world_size=2).values[0] == [SECOND, 3 * SECOND]


def test_without_a_handler_for_it_a_signal_acts_as_ever() -> None:
    def body() -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    assert (alone(body).status, alone(body).exit_code) == ("killed", -15)


def test_an_alarm_reports_what_is_left_and_can_be_withdrawn() -> None:
    def body() -> list[Any]:
        rung: list[int] = []
        signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic_ns()))
        found: list[Any] = [signal.alarm(10)]
        time.sleep(2.5)
        found += [signal.getitimer(signal.ITIMER_REAL), signal.alarm(5), signal.alarm(0), signal.alarm(0)]
        time.sleep(20)
        return [*found, rung]

    assert value(body) == [0, (7.5, 0.0), 8, 5, 0, []]


def test_an_interval_rings_again_and_again() -> None:
    def body() -> list[int]:
        rung: list[int] = []
        signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic_ns()))
        signal.setitimer(signal.ITIMER_REAL, 0.5, 0.25)
        time.sleep(1.1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(1)
        return rung

    assert value(body) == [SECOND // 2, SECOND * 3 // 4, SECOND]


def test_asyncio_handles_signals() -> None:
    async def main() -> list[Any]:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, came.set)
        loop.call_later(2, os.kill, os.getpid(), signal.SIGTERM)
        await came.wait()
        return [time.monotonic_ns() // SECOND, loop.remove_signal_handler(signal.SIGTERM)]

    assert value(lambda: asyncio.run(main())) == [2, True]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: signal.signal(signal.SIGKILL, signal.SIG_IGN), OSError, "Invalid argument"),
        (lambda: signal.signal(1000, signal.SIG_IGN), ValueError, "signal number out of range"),
        (lambda: signal.signal(signal.SIGTERM, 77), TypeError, "signal handler must be signal.SIG_IGN, signal.SIG_DFL"),
        (lambda: signal.getsignal(0), ValueError, "signal number out of range"),
        (lambda: signal.setitimer(signal.ITIMER_REAL, -1), signal.ItimerError, "Invalid argument"),
    ],
)
def test_bad_calls_are_refused_as_python_does(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    for where in (call, lambda: value(call)):
        with pytest.raises(error, match=text) if where is call else pytest.raises(Exception, match=text):
            where()


@pytest.mark.parametrize(("stops_after_s", "code"), [(5, 0), (100, -9)])
def test_the_launcher_gives_a_worker_that_handles_it_thirty_seconds(stops_after_s: int, code: int) -> None:
    ends: list[tuple[int, float]] = []

    def body() -> None:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            ends.append((rank_of(), time.monotonic()))
            return
        if rank_of() == 1:
            time.sleep(1)
            raise RuntimeError("gone")

        def save_and_leave(number: int, frame: object) -> None:
            time.sleep(stops_after_s)
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, save_and_leave)
        time.sleep(1000)

    result = simdist.run(body, world_size=2, max_restarts=1)

    result.raise_for_failure()
    waited_s = min(stops_after_s, 30)
    assert [moment for _, moment in ends] == [pytest.approx(1.0 + 0.1 + waited_s + 1.0, abs=1e-6)] * 2
    exits = [event.data["exit_code"] for event in result.events if event.kind == "exit" and event.rank == 0]
    assert exits == [code, 0]
