"""Threads of a rank: they are tasks of its process, and begin, wait and end like threads."""

from __future__ import annotations

import _thread
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simdist
from tests.host_state import host_state
from tests.process.alone import alone

RANK = "RANK"
LATE_S = 100e-6  # a wait that times out ends so much later


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


def test_an_error_of_a_raw_thread_reaches_a_hook_of_the_program() -> None:
    def body() -> list[object]:
        found: list[object] = []

        def fails() -> None:
            raise ValueError("here")

        sys.unraisablehook = lambda args: found.append((args.exc_type, str(args.exc_value), args.object, args.err_msg))
        _thread.start_new_thread(fails, ())
        time.sleep(1)
        (thread,) = found
        assert isinstance(thread, tuple)
        return [thread[0], thread[1], thread[2] is None or thread[2] is fails, thread[3][:38]]

    hook = sys.unraisablehook
    result = alone(body)

    assert result.value == [ValueError, "here", True, "Exception ignored in thread started by"]
    assert result.stderr == ""
    assert sys.unraisablehook is hook


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


# -- which threads there are ----------------------------------------------------------------------------------------


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
    reported = [line for line in real.stderr.splitlines() if not line.startswith(" ")]
    found = [line.removeprefix("[rank0]: ") for line in rank.stderr.splitlines()]
    assert [line for line in found if not line.startswith(" ")] == reported


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
            threading.Event().wait(5)  # then it makes the call that rank 0 waits for
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
            if not there:  # the other thread may be here at the same time
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
