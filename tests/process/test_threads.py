"""Threads of a rank: they are tasks of its process, and begin, wait and end as threads do."""

from __future__ import annotations

import _thread
import atexit
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from simdist.errors import UnsupportedError
from simdist.faults import Crash, Hang
from simdist.result import RankResult
from tests.host_state import host_state

RANK = "RANK"
LATE_S = 100e-6  # how late a wait ends that runs out of time


def alone(body: Callable[[], Any], **settings: Any) -> RankResult:
    return simdist.run(body, world_size=1, **settings).ranks[0]


# -- beginning and waiting ------------------------------------------------------------------------------------------


def test_threads_sleep_side_by_side_in_virtual_time() -> None:
    def body() -> list[Any]:
        log: list[Any] = []

        def work(seconds: float) -> None:
            time.sleep(seconds)
            log.append((seconds, time.monotonic(), os.environ[RANK], os.getpid()))

        threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (3.0, 1.0, 2.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [*log, time.monotonic()]

    values = simdist.run(body, world_size=2).values

    assert values == [[*((n, n, str(r), 1000 + r) for n in (1.0, 2.0, 3.0)), 3.0] for r in range(2)]


def test_a_subclass_runs_its_own_run() -> None:
    class Adder(threading.Thread):
        def __init__(self) -> None:
            super().__init__(name="adder")
            self.total = 0

        def run(self) -> None:
            for number in range(10):
                time.sleep(0.5)
                self.total += number

    def body() -> tuple[int, float, str, bool]:
        adder = Adder()
        adder.start()
        adder.join()
        return adder.total, time.monotonic(), adder.name, adder.is_alive()

    assert alone(body).value == (45, 5.0, "adder", False)


def test_a_join_with_a_timeout_takes_that_long() -> None:
    def body() -> list[Any]:
        thread = threading.Thread(target=time.sleep, args=(3,))
        thread.start()
        found: list[Any] = []
        for timeout in (1, 0, -1, 5):
            thread.join(timeout)
            found.append((time.monotonic(), thread.is_alive()))
        return found

    assert alone(body).value == [(1 + LATE_S, True), (1 + LATE_S, True), (1 + LATE_S, True), (3.0, False)]


def test_a_timer_fires_unless_it_is_cancelled() -> None:
    def body() -> list[float]:
        fired: list[float] = []
        first = threading.Timer(1.5, lambda: fired.append(time.monotonic()))
        second = threading.Timer(2, lambda: fired.append(-1.0))
        first.start()
        second.start()
        time.sleep(1.75)
        second.cancel()
        return fired

    result = simdist.run(body, world_size=1)

    assert result.values == [[1.5 + LATE_S]]
    assert result.virtual_time_ns == 1_750_000_000


def test_a_thread_of_the_low_level_module_begins_too() -> None:
    def body() -> list[Any]:
        found: list[Any] = []

        def work(number: int, *, factor: int) -> None:
            found.append((number * factor, threading.get_ident(), threading.current_thread().name))

        ident = _thread.start_new_thread(work, (3,), {"factor": 2})
        time.sleep(1)
        return [found[0][1] == ident, found[0][0], found[0][2]]

    assert alone(body).value == [True, 6, "Dummy-1"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, ()), "first arg must be callable"),
        ((print, []), "2nd arg must be a tuple"),
        ((print, (), 3), "optional 3rd arg must be a dictionary"),
    ],
)
def test_bad_arguments_are_refused_as_outside(arguments: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        _thread.start_new_thread(*arguments)

    error = alone(lambda: _thread.start_new_thread(*arguments)).exception
    assert (type(error), str(error)) == (TypeError, text)


def test_a_pool_works_in_order_and_in_virtual_time() -> None:
    def body() -> list[Any]:
        def work(seconds: int) -> tuple[int, str]:
            time.sleep(seconds)
            return seconds, threading.current_thread().name

        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(work, [1, 2, 3]))
        return [done, time.monotonic()]

    values = simdist.run(body, world_size=2).values

    names = [f"ThreadPoolExecutor-0_{n}" for n in (0, 1, 0)]
    assert values == [[list(zip([1, 2, 3], names, strict=True)), 4.0]] * 2


def test_a_pool_of_multiprocessing_that_has_threads_works_too() -> None:
    def body() -> list[Any]:
        def work(seconds: int) -> int:
            time.sleep(seconds)
            return 2 * seconds

        with ThreadPool(2) as pool:
            return [pool.map(work, [1, 2, 3], chunksize=1), time.monotonic()]

    assert alone(body).value == [[2, 4, 6], 4.0]


# -- who is there ---------------------------------------------------------------------------------------------------


def test_each_rank_has_a_main_thread_and_numbers_of_its_own() -> None:
    def body() -> list[Any]:
        main = threading.current_thread()
        found = [main is threading.main_thread(), main.name, main.daemon, main.ident == threading.get_ident()]
        for _ in range(2):
            threading.Thread(target=second).start()
        names = [thread.name for thread in threading.enumerate()]
        time.sleep(2)
        return [*found, names, threading.active_count(), main.is_alive(), threading.Thread().daemon]

    values = simdist.run(body, world_size=3).values

    assert values == [[True, "MainThread", False, True, ["MainThread", *NAMES], 1, True, False]] * 3


NAMES = ["Thread-1 (second)", "Thread-2 (second)"]


def second() -> None:
    time.sleep(1)


def test_the_host_keeps_its_main_thread_and_numbers() -> None:
    before = threading.Thread().name

    def body() -> None:
        for _ in range(5):
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()

    alone(body)

    assert int(threading.Thread().name.removeprefix("Thread-")) == int(before.removeprefix("Thread-")) + 1
    assert threading.current_thread() is threading.main_thread()
    assert threading.enumerate()[0] is threading.main_thread()


def test_what_is_local_to_a_thread_stays_local() -> None:
    def body() -> list[Any]:
        own = threading.local()
        own.value = "main"
        found: list[Any] = []

        def work() -> None:
            found.append(hasattr(own, "value"))
            own.value = "thread"
            time.sleep(1)
            found.append(own.value)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.5)
        found.append(own.value)
        thread.join()
        return found

    assert alone(body).value == [False, "main", "thread"]


# -- ends -----------------------------------------------------------------------------------------------------------


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
        pools.append(pool)  # so that it lives on
        if os.environ[RANK] == "1":
            time.sleep(10)
        return pool.submit(lambda: time.monotonic()).result()

    result = simdist.run(body, world_size=2)

    assert [rank.status for rank in result.ranks] == ["returned", "returned"]
    assert result.values == [0.0, 10.0]
    with ThreadPoolExecutor(1) as pool:  # the host's own go on
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


def test_a_thread_that_raises_is_told_on_stderr_and_the_rank_goes_on() -> None:
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


# -- as in a real interpreter ---------------------------------------------------------------------------------------

PROGRAMS = {
    "the order of the end": """
        import atexit, threading, time
        from concurrent.futures import ThreadPoolExecutor
        atexit.register(print, "atexit 1")
        atexit.register(print, "atexit 2")
        threading._register_atexit(print, "before joins")
        pool = ThreadPoolExecutor(1)
        pool.submit(time.sleep, 0.05)
        pool.submit(print, "pooled")
        main = threading.main_thread()
        def wait_for_main():
            main.join()
            print("main has ended", main.is_alive())
        threading.Thread(target=wait_for_main).start()
        threading.Timer(0.1, print, ["timer"]).start()
        threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
        print("end of main")
    """,
    "names": """
        import threading, queue
        from concurrent.futures import ThreadPoolExecutor
        def work(): print(threading.current_thread().name, threading.current_thread().daemon)
        for daemon in (False, True):
            thread = threading.Thread(target=work, daemon=daemon); thread.start(); thread.join()
        class Own(threading.Thread):
            def run(self): work()
        own = Own(); own.start(); own.join()
        with ThreadPoolExecutor(2) as pool: pool.submit(work).result()
        with ThreadPoolExecutor(2, thread_name_prefix="mine") as pool: pool.submit(work).result()
        print([thread.name for thread in threading.enumerate()], threading.active_count())
        print(threading.current_thread(), own.is_alive()) if False else print(own.is_alive())
    """,
    "misuse": """
        import threading, queue
        def attempt(function):
            try: print("fine", function())
            except Exception as error: print(type(error).__name__, error)
        thread = threading.Thread(target=int)
        attempt(thread.join)
        thread.start(); thread.join()
        attempt(thread.start)
        attempt(threading.current_thread().join)
        lock, rlock = threading.Lock(), threading.RLock()
        attempt(lock.release)
        attempt(rlock.release)
        attempt(lambda: lock.acquire(False, 1))
        attempt(lambda: lock.acquire(True, -2))
        attempt(lambda: lock.acquire(True, 1e30))
        attempt(lambda: lock.acquire(timeout="x"))
        attempt(lambda: [lock.acquire(), lock.acquire(False), lock.acquire(timeout=0), lock.acquire(True, 0.01)])
        attempt(lambda: [rlock.acquire(), rlock.acquire(), rlock._is_owned(), rlock.release(), rlock.release()])
        attempt(threading.Condition().wait)
        attempt(threading.Condition().notify)
        attempt(threading.BoundedSemaphore(1).release)
        attempt(lambda: queue.SimpleQueue().get(timeout=-1))
        attempt(lambda: queue.SimpleQueue().get(timeout=0.01))
        attempt(lambda: queue.SimpleQueue().get_nowait())
        attempt(lambda: queue.Queue().get(timeout=-1))
        attempt(lambda: queue.Queue(1).put(1, timeout=0.01))
    """,
    "exceptions": """
        import sys, threading, _thread, time
        def fails(): raise ValueError("of a thread")
        def leaves(): sys.exit("unseen")
        for function in (fails, leaves):
            thread = threading.Thread(target=function); thread.start(); thread.join()
        threading.excepthook = lambda args: print("hooked", args.exc_type.__name__, args.thread.name)
        thread = threading.Thread(target=fails); thread.start(); thread.join()
        _thread.start_new_thread(leaves, ())
        time.sleep(0.05)
        raise KeyError("main")
    """,
    "a thread outlives an exception": """
        import threading, time
        threading.Timer(0.1, print, ["timer"]).start()
        raise SystemExit(3)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_say_what_they_say_in_an_interpreter_of_their_own(name: str) -> None:
    source = textwrap.dedent(PROGRAMS[name])
    real = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)

    rank = alone(lambda: exec(compile(source, "<string>", "exec"), {"__name__": "__main__"}))

    assert rank.stdout == real.stdout
    assert rank.exit_code == real.returncode
    told = [line for line in real.stderr.splitlines() if not line.startswith(" ")]
    found = [line.removeprefix("[rank0]: ") for line in rank.stderr.splitlines()]
    assert [line for line in found if not line.startswith(" ")] == told


# -- reports --------------------------------------------------------------------------------------------------------


def test_a_thread_that_never_ends_is_named() -> None:
    def body() -> None:
        threading.Thread(target=queue.Queue().get, name="writer-0").start()

    result = simdist.run(body, world_size=2)

    assert [rank.status for rank in result.ranks] == ["hung", "hung"]
    assert result.ranks[1].waiting == "join of thread 'writer-0'; thread 'writer-0' in Queue.get"


def test_a_deadlock_of_two_threads_names_them() -> None:
    def body() -> None:
        first, second = threading.Lock(), threading.RLock()

        def other() -> None:
            with second:
                time.sleep(1)
                with first:
                    pass

        for name in ("writer", "writer"):
            threading.Thread(target=other, name=name).start()
        with first:
            time.sleep(1)
            with second:
                pass

    result = simdist.run(body, world_size=1)

    assert result.deadlock is not None
    assert result.deadlock.cycle == ("rank 0", "rank 0, thread 'writer'", "rank 0")
    assert str(result.deadlock).splitlines() == [
        "deadlock at 1.000000000 s: rank 0 -> rank 0, thread 'writer' -> rank 0",
        "  rank 0 waits in RLock.acquire since 1.000000000 s",
        "  rank 0, thread 'writer' waits in Lock.acquire since 1.000000000 s",
        "  rank 0, thread 'writer' #2 waits in RLock.acquire since 0.000000000 s",
    ]


def test_a_daemon_that_looks_now_and_then_hides_no_deadlock() -> None:
    def body() -> None:
        first, second = threading.Lock(), threading.Lock()

        def monitor() -> None:
            while not threading.Event().wait(10):
                pass

        def other() -> None:
            with second:
                time.sleep(1)
                first.acquire()

        threading.Thread(target=monitor, daemon=True).start()
        threading.Thread(target=other, name="other").start()
        with first:
            time.sleep(1)
            second.acquire(timeout=3600) or os._exit(4)

    result = simdist.run(body, world_size=1)

    assert result.ranks[0].exit_code == 4  # the timeout ends it, so there is no deadlock
    assert result.deadlock is None
    assert result.virtual_time_ns == 3_601_000_100_000


def test_a_wait_that_ends_by_itself_is_part_of_no_deadlock() -> None:
    def body() -> float:
        dist.init_process_group("gloo")
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        value = torch.ones(1)

        def beside() -> None:
            dist.all_reduce(value.clone(), group=second)

        if dist.get_rank() == 1:
            thread = threading.Thread(target=beside)
            thread.start()
            threading.Event().wait(5)  # then it does what rank 0 waits for
        dist.all_reduce(value, group=first)
        if dist.get_rank() == 0:
            dist.all_reduce(value.clone(), group=second)
        return value.item()

    result = simdist.run(body, world_size=2)

    assert result.values == [2.0, 2.0]
    assert result.deadlock is None


def test_a_world_with_threads_leaves_no_trace() -> None:
    before = host_state(), dict(vars(threading)), _types()

    def body() -> None:
        hung = threading.Event()
        for _ in range(3):
            threading.Thread(target=hung.wait).start()
        threading.Thread(target=hung.wait, daemon=True).start()
        with ThreadPoolExecutor(2) as pool:
            pool.submit(time.sleep, 1).result()
        if os.environ[RANK] == "0":
            os._exit(1)

    simdist.run(body, world_size=3)

    assert (host_state(), dict(vars(threading)), _types()) == before


def _types() -> list[dict[str, Any]]:
    return [dict(vars(kind)) for kind in (type(threading.Lock()), type(threading.RLock()), queue.SimpleQueue)]


@pytest.mark.parametrize("policy", ["fifo", "random"])
def test_two_runs_with_threads_have_one_digest(policy: Any) -> None:
    def body() -> list[int]:
        found: list[int] = []
        lock, go = threading.Lock(), threading.Barrier(4)

        def work(number: int) -> None:
            go.wait()
            for _ in range(5):
                with lock:
                    found.append(number)
                    print(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    runs = [simdist.run(body, world_size=3, policy=policy, seed=5) for _ in range(2)]
    other = simdist.run(body, world_size=3, policy=policy, seed=6)

    assert runs[0].digest == runs[1].digest
    assert runs[0].values == runs[1].values
    assert (other.values == runs[0].values) is (policy == "fifo")


def test_the_random_policy_finds_a_race_between_two_threads() -> None:
    def body() -> int:
        made: list[int] = []
        cache: dict[str, int] = {}
        lock, go = threading.Lock(), threading.Barrier(2)

        def look_up() -> None:
            go.wait()
            with lock:
                there = "key" in cache
            if not there:  # the other may be just here, too
                made.append(1)
                with lock:
                    cache["key"] = 1

        threads = [threading.Thread(target=look_up) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(made)

    found = [simdist.run(body, world_size=1, policy="random", seed=seed).values[0] for seed in range(10)]

    assert simdist.run(body, world_size=1).values == [1]
    assert set(found) == {1, 2}
