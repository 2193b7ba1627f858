"""asyncio and selectors on a rank, in virtual time."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import simdist

LATE_S = 100e-6  # a wait that times out ends so much later, and so does every wait of an event loop


def test_an_event_loop_sleeps_in_virtual_time() -> None:
    async def main() -> list[Any]:
        found: list[Any] = [await asyncio.gather(*(asyncio.sleep(n, n) for n in (3, 1, 2))), time.monotonic()]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.5 + int(os.environ["RANK"]))
        return [*found, time.monotonic()]

    values = simdist.run(lambda: asyncio.run(main()), world_size=2).values

    assert values == [[[3, 1, 2], pytest.approx(3 + 3 * LATE_S), pytest.approx(end + 4 * LATE_S)] for end in (3.5, 4.5)]


def test_each_process_counts_its_own_tasks() -> None:
    async def nothing() -> None:
        await asyncio.sleep(0)

    async def main() -> list[str]:
        tasks = [asyncio.create_task(nothing()), asyncio.create_task(nothing(), name="mine")]
        await asyncio.gather(nothing(), *tasks)
        current = asyncio.current_task()
        assert current is not None
        return [current.get_name(), *(task.get_name() for task in tasks)]

    def both() -> list[list[str]]:
        return [asyncio.run(main()), asyncio.run(main())]

    again = 6 if sys.version_info >= (3, 13) else 7  # 3.13 does not count tasks with a given name
    expected = [["Task-1", "Task-2", "mine"], [f"Task-{again}", f"Task-{again + 1}", "mine"]]  # as in a fresh process
    assert simdist.run(both, world_size=2).values == simdist.run(both, world_size=2).values == [expected, expected]


def test_threads_wake_an_event_loop() -> None:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def work() -> float:
            time.sleep(2)
            return time.monotonic()

        def report() -> None:
            time.sleep(0.25)
            loop.call_soon_threadsafe(answer.set_result, time.monotonic())

        threading.Thread(target=report).start()
        return [await answer, time.monotonic(), await asyncio.to_thread(work), time.monotonic()]

    assert simdist.run(lambda: asyncio.run(main()), world_size=2).values == [[0.25, 0.25, 2.25, 2.25]] * 2


def test_a_loop_in_a_thread_serves_the_main_thread() -> None:
    def body() -> list[Any]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        time.sleep(1)

        async def work() -> str:
            await asyncio.sleep(1.5)
            return threading.current_thread().name

        found = [asyncio.run_coroutine_threadsafe(work(), loop).result(), time.monotonic()]
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        return [*found, time.monotonic()]

    assert simdist.run(body, world_size=1).values == [["Thread-1 (run_forever)", 2.5 + LATE_S, 2.5 + LATE_S]]


def test_what_a_coroutine_raises_comes_out() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("coroutine")

    result = simdist.run(lambda: asyncio.run(main()), world_size=1)

    assert (type(result.ranks[0].exception), result.ranks[0].ended_ns) == (KeyError, 1_000_100_000)


SELECTORS = [getattr(selectors, name) for name in ("EpollSelector", "PollSelector", "SelectSelector")]


@pytest.mark.parametrize("kind", SELECTORS)
def test_selectors_wait_for_a_write_of_another_thread(kind: Callable[[], Any]) -> None:
    def body() -> list[Any]:
        ours, theirs = socket.socketpair()
        with ours, theirs, kind() as selector:
            selector.register(ours, selectors.EVENT_READ)
            found: list[Any] = [len(selector.select(0.5)), time.monotonic()]
            threading.Timer(1, theirs.send, [b"x"]).start()
            return [*found, len(selector.select()), time.monotonic(), len(selector.select(7))]

    assert simdist.run(body, world_size=1).values == [[0, 0.5 + LATE_S, 1, pytest.approx(1.5 + 2 * LATE_S), 1]]


def test_a_pipe_is_waited_for_too() -> None:
    def body() -> tuple[int, float]:
        read, write = os.pipe()
        threading.Timer(1, os.write, [write, b"x"]).start()
        ready, _, _ = select.select([read], [], [])
        moment = time.monotonic()
        os.close(read)
        os.close(write)
        return len(ready), moment

    assert simdist.run(body, world_size=1).values == [(1, 1 + LATE_S)]


def test_a_handler_of_a_signal_may_wait_while_its_rank_waits() -> None:
    def body() -> tuple[list[list[int]], bool, float]:
        (read, write), (silent, other) = os.pipe(), os.pipe()
        within: list[list[int]] = []
        signal.signal(signal.SIGALRM, lambda *_: within.append(select.select([silent], [], [], 0.1)[0]))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        threading.Timer(0.3, os.write, [write, b"x"]).start()
        ready, _, _ = select.select([read], [], [], 5)
        moment = time.monotonic()
        for fd in (read, write, silent, other):
            os.close(fd)
        return within, len(ready) == 1, moment

    result = simdist.run(body, world_size=2)

    assert result.values == [([[]], True, 0.3 + LATE_S)] * 2


def test_a_loop_that_waits_for_ever_hangs_and_says_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    result = simdist.run(lambda: asyncio.run(main()), world_size=1)

    assert result.ranks[0].status == "hung"
    assert result.ranks[0].waiting == "wait for file descriptors (an event loop, or a selector)"


@pytest.mark.skipif(not hasattr(os, "readinto"), reason="this Python has no os.readinto")
def test_bytes_of_a_pipe_are_read_into_a_buffer_in_virtual_time() -> None:
    def late(end: Any) -> None:
        time.sleep(1)
        os.write(end.fileno(), b"abc")

    def body() -> list[Any]:
        forking = multiprocessing.get_context("fork")
        ours, theirs = forking.Pipe(duplex=False)
        child = forking.Process(target=late, args=(theirs,))
        child.start()
        theirs.close()
        room = bytearray(5)
        read: Any = vars(os)["readinto"]
        found = [read(ours.fileno(), room), bytes(room), read(ours.fileno(), room), round(time.monotonic(), 2)]
        child.join()
        return found

    assert simdist.run(body, world_size=1).values == [[3, b"abc\0\0", 0, 1.0]]


def refusals() -> list[tuple[type, str]]:
    """What polls say to timeouts that are too long, or no numbers, though something has happened already."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    poll, epoll, found = select.poll(), select.epoll(), []
    poll.register(reader)
    epoll.register(reader)
    calls: list[tuple[Callable[[Any], object], list[Any]]] = [
        (poll.poll, [1 << 31, -(1 << 31) - 1, 1 << 63, math.nan, "1"]),
        (epoll.poll, [1 << 22, 1 << 63, math.nan, "1"]),
        (lambda timeout: select.select([reader], [], [], timeout), [1 << 63, 1e10, math.nan, "1", -1]),
    ]
    for call, timeouts in calls:
        for timeout in timeouts:
            with pytest.raises((OverflowError, ValueError, TypeError)) as refused:
                call(timeout)
            found.append((refused.type, str(refused.value)))
    epoll.close()
    os.close(reader)
    os.close(writer)
    return found


def test_a_timeout_that_is_too_long_or_no_number_is_refused() -> None:
    assert simdist.run(refusals, world_size=1).values == [refusals()]
