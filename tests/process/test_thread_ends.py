"""How threads end, and what else ends with them: pools, the rank, other threads."""

from __future__ import annotations

import _thread
import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import simdist
from simdist.errors import UnsupportedError
from simdist.faults import Crash, Hang
from tests.process.alone import alone

RANK = "RANK"


def test_a_rank_ends_when_its_last_thread_that_is_no_daemon_does() -> None:
    log: list[str] = []

    def body() -> None:
        atexit.register(lambda: log.append(f"atexit {time.monotonic()}"))

        def tick(name: str, seconds: float) -> None:
            while True:
                time.sleep(seconds)
                log.append(f"{name} {time.monotonic()}")
                if name == "last":
                    return

        threading.Thread(target=tick, args=("daemon", 2), daemon=True).start()
        threading.Thread(target=tick, args=("last", 5)).start()
        log.append("main")

    result = alone(body)

    assert (result.status, result.ended_ns) == ("returned", 5_000_000_000)
    assert log == ["main", "daemon 2.0", "daemon 4.0", "last 5.0", "atexit 5.0"]


def test_the_workers_of_a_pool_that_nobody_shut_end_with_their_rank() -> None:
    pools: list[Any] = []

    def body() -> Any:
        pool = ThreadPoolExecutor(2)
        pools.append(pool)  # keeps it alive
        if os.environ[RANK] == "1":
            time.sleep(10)
        return pool.submit(lambda: time.monotonic()).result()

    result = simdist.run(body, world_size=2)

    assert [rank.status for rank in result.ranks] == ["returned", "returned"]
    assert result.values == [0.0, 10.0]
    with ThreadPoolExecutor(1) as pool:  # the host's own pools go on
        assert pool.submit(int).result() == 0


def test_a_pool_takes_nothing_at_the_end() -> None:
    def body() -> list[str]:
        said: list[str] = []
        pool = ThreadPoolExecutor(1)
        pool.submit(int).result()

        def submit() -> None:
            time.sleep(1)
            try:
                pool.submit(int)
            except RuntimeError as error:
                said.append(str(error))

        threading.Thread(target=submit).start()
        return said

    assert alone(body).value == ["cannot schedule new futures after shutdown"]


def started(start: Callable[[], object]) -> str:
    """Return what an exit handler of a rank gets that starts something."""
    said: list[str] = []

    def starts() -> None:
        try:
            start()
        except RuntimeError as error:
            said.append(str(error))
        else:
            said.append("started")

    assert alone(lambda: atexit.register(starts)).ok
    return said[0]


def fork() -> None:
    multiprocessing.get_context("fork").Process(target=int).start()


def test_an_exit_handler_starts_what_python_lets_it_start() -> None:
    since_3_12 = sys.version_info >= (3, 12)
    shut = "cannot schedule new futures after interpreter shutdown"

    assert started(lambda: ThreadPoolExecutor(1).submit(int)) == shut
    assert started(lambda: ProcessPoolExecutor(1).submit(int)) == shut
    thread = started(lambda: threading.Thread(target=int).start())
    assert thread == ("can't create new thread at interpreter shutdown" if since_3_12 else "started")
    assert started(fork) == ("can't fork at interpreter shutdown" if since_3_12 else "started")
    with ThreadPoolExecutor(1) as pool:  # the host's own pools go on
        assert pool.submit(int).result() == 0


def test_a_thread_that_raises_is_reported_on_stderr_and_the_rank_goes_on() -> None:
    def body() -> float:
        def fails() -> None:
            raise ValueError("of a thread")

        thread = threading.Thread(target=fails, name="loser")
        thread.start()
        thread.join()
        time.sleep(1)
        return time.monotonic()

    result = alone(body)

    assert (result.status, result.value) == ("returned", 1.0)
    first, *_, last = result.stderr.splitlines()
    assert (first, last) == ("Exception in thread loser:", "ValueError: of a thread")


def test_a_rank_may_have_a_hook_of_its_own_for_them() -> None:
    before = threading.excepthook

    def body() -> list[str]:
        seen: list[str] = []

        def hook(args: Any) -> None:
            seen.append(f"{args.thread.name} {args.exc_value}")

        def fails() -> None:
            raise ValueError(os.environ[RANK])

        quiet = threading.Thread(target=int)
        quiet.start()
        if os.environ[RANK] == "0":
            threading.excepthook = hook
        time.sleep(1)
        thread = threading.Thread(target=fails)
        thread.start()
        thread.join()
        return seen

    result = simdist.run(body, world_size=2)

    assert result.values == [["Thread-2 (fails) 0"], []]
    assert [rank.stderr.partition(":")[0] for rank in result.ranks] == ["", "Exception in thread Thread-2 (fails)"]
    assert threading.excepthook is before


def test_sys_exit_ends_the_thread_only() -> None:
    def body() -> float:
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
        time.sleep(1)
        return time.monotonic()

    result = alone(body)

    assert (result.status, result.value, result.stderr) == ("returned", 1.0, "")


def test_os_exit_ends_the_rank() -> None:
    log: list[str] = []

    def body() -> None:
        def leave() -> None:
            time.sleep(1)
            os._exit(7)

        threading.Thread(target=leave).start()
        try:
            time.sleep(5)
        finally:
            log.append("main")

    result = simdist.run(body, world_size=1)

    assert (result.ranks[0].status, result.ranks[0].exit_code, result.virtual_time_ns) == ("exited", 7, 10**9)
    assert log == ["main"]  # at teardown, with every effect refused


@pytest.mark.parametrize("how", ["itself", "fault", "thread"])
def test_a_killed_rank_takes_its_threads_along(how: str) -> None:
    log: list[str] = []

    def body() -> None:
        def ticks() -> None:
            while True:
                time.sleep(1)
                log.append(f"{os.environ[RANK]} {time.monotonic()}")
                if how == "thread" and os.environ[RANK] == "0" and time.monotonic() == 2:
                    os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=ticks, daemon=True).start()
        time.sleep(2.5)
        if how == "itself" and os.environ[RANK] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)

    faults = [Crash(rank=0, at_ns=2_500_000_000)] if how == "fault" else []
    result = simdist.run(body, world_size=2, faults=faults)

    assert [rank.status for rank in result.ranks] == ["killed", "returned"]
    assert log == ["0 1.0", "1 1.0", "0 2.0", "1 2.0", "1 3.0"]


def test_a_pause_stops_every_thread_of_the_rank() -> None:
    def body() -> list[float]:
        ticks: list[float] = []

        def tick() -> None:
            for _ in range(3):
                time.sleep(1)
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        thread.join()
        return ticks

    fault = Hang(rank=0, at_ns=1_500_000_000, duration_ns=4_000_000_000)

    assert simdist.run(body, world_size=2, faults=[fault]).values == [[1.0, 5.5, 6.5], [1.0, 2.0, 3.0]]


def test_an_interrupt_of_the_main_thread_by_another_is_refused() -> None:
    said: list[str] = []

    def body() -> None:
        def interrupt() -> None:
            try:
                _thread.interrupt_main()
            except UnsupportedError as error:
                said.append(str(error))

        thread = threading.Thread(target=interrupt)
        thread.start()
        thread.join()
        with pytest.raises(KeyboardInterrupt):
            _thread.interrupt_main()

    assert alone(body).status == "returned"
    assert said[0].startswith("rank 0: _thread.interrupt_main from another thread is not simulated; set a ")


def test_a_signal_handler_can_be_set_by_the_main_thread_only() -> None:
    def body() -> list[str]:
        said: list[str] = []

        def handle() -> None:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            except ValueError as error:
                said.append(str(error))

        thread = threading.Thread(target=handle)
        thread.start()
        thread.join()
        return said

    assert alone(body).value == ["signal only works in main thread of the main interpreter"]
