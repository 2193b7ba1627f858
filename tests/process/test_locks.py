"""Locks, and Python's classes on top of them, wait in virtual time on a rank's threads; others get the originals."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import simdist
from simdist.faults import Crash
from simdist.process import original
from simdist.process.threads import _locks
from tests.beside import wait_for_host
from tests.process.alone import alone

RANK = "RANK"
LATE_S = 100e-6  # a wait that times out ends so much later
LOCK, RLOCK = threading.Lock(), threading.RLock()
CONDITION = threading.Condition()
TAKE, GIVE = LOCK.acquire, LOCK.release


def later(seconds: float, function: Callable[[], Any]) -> None:
    threading.Timer(seconds, function).start()


# -- times ----------------------------------------------------------------------------------------------------------


def times_out(wait: Callable[[], Any]) -> tuple[Any, float]:
    try:
        return wait(), time.monotonic()
    except (queue.Empty, queue.Full, threading.BrokenBarrierError, TimeoutError) as error:
        return type(error).__name__, time.monotonic()


def held(lock: Any) -> Any:
    threading.Thread(target=lock.acquire, daemon=True).start()
    return lock


def full() -> queue.Queue[int]:
    line: queue.Queue[int] = queue.Queue(1)
    line.put(0)
    return line


@pytest.mark.parametrize(
    ("wait", "answer"),
    [
        (lambda: held(threading.Lock()).acquire(timeout=0.5), False),
        (lambda: held(threading.RLock()).acquire(timeout=0.5), False),
        (lambda: threading.Event().wait(0.5), False),
        (lambda: threading.Semaphore(0).acquire(timeout=0.5), False),
        (lambda: threading.Barrier(2).wait(0.5), "BrokenBarrierError"),
        (lambda: queue.Queue().get(timeout=0.5), "Empty"),
        (lambda: full().put(1, timeout=0.5), "Full"),
        (lambda: queue.SimpleQueue().get(timeout=0.5), "Empty"),
        (lambda: queue.PriorityQueue().get(timeout=0.5), "Empty"),
    ],
)
def test_a_timeout_takes_virtual_time(wait: Callable[[], Any], answer: Any) -> None:
    assert alone(lambda: times_out(wait)).value == (answer, 0.5 + LATE_S)


def test_a_wait_ends_when_another_thread_ends_it() -> None:
    def body() -> list[Any]:
        found: list[Any] = []
        event, gate, line = threading.Event(), threading.Semaphore(0), queue.SimpleQueue[int]()
        barrier, condition = threading.Barrier(2), threading.Condition()

        def notify() -> None:
            with condition:
                condition.notify()

        waits: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (event.set, lambda: event.wait(10)),
            (gate.release, gate.acquire),
            (lambda: line.put(7), lambda: line.get(timeout=10)),
            (barrier.wait, barrier.wait),
            (notify, lambda: under(condition)),
        ]
        for end, wait in waits:
            later(1.5, end)
            found.append((wait(), time.monotonic()))
        return found

    values = alone(body).value

    assert values == [
        (answer, pytest.approx(1.5 * number + number * LATE_S))
        for number, answer in enumerate((True, True, 7, values[3][0], True), 1)
    ]


def under(condition: threading.Condition) -> bool:
    with condition:
        return condition.wait(10)


def test_a_lock_goes_to_those_who_wait_in_their_order() -> None:
    def body() -> list[Any]:
        lock, log = threading.Lock(), list[Any]()

        def work(number: int) -> None:
            time.sleep(0.1 * number)
            for _ in range(2):
                with lock:
                    log.append((number, time.monotonic()))
                    time.sleep(1)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return log

    # A waiting thread gets the lock, even if others take it again at once.
    assert alone(body).value == [(0, 0.0), (1, 1.0), (2, 2.0), (0, 3.0), (1, 4.0), (2, 5.0)]


def test_a_lock_that_is_waited_for_is_nobody_elses_meanwhile() -> None:
    def body() -> list[Any]:
        lock, found = threading.Lock(), list[Any]()
        lock.acquire()
        threading.Thread(target=lambda: found.append((lock.acquire(), time.monotonic()))).start()
        time.sleep(1)
        lock.release()
        now = [lock.acquire(False), lock.locked(), list(found)]
        time.sleep(1)
        return [*now, found, lock.locked()]

    assert alone(body).value == [False, True, [], [(True, 1.0)], True]


# -- compared with a model ------------------------------------------------------------------------------------------

_MS = st.integers(0, 5)
_PLANS = st.lists(st.lists(st.tuples(_MS, st.integers(0, 1), _MS), min_size=1, max_size=4), min_size=1, max_size=4)


@given(
    plans=_PLANS,
    kind=st.sampled_from([threading.Lock, threading.RLock]),
    slots=st.integers(0, 2),
    seed=st.none() | st.integers(0, 9),
)
def test_locks_exclude_and_serve_first_come_first(
    plans: list[list[tuple[int, int, int]]], kind: Callable[[], Any], slots: int, seed: int | None
) -> None:
    """Check the laws of queues: a lock is one server with a queue, a semaphore several servers."""
    places = max(1, slots)

    def body() -> list[list[tuple[int, int, int]]]:
        locks = [kind() if slots == 0 else threading.Semaphore(slots) for _ in range(2)]
        log: list[list[tuple[int, int, int]]] = [[], []]

        def work(plan: list[tuple[int, int, int]]) -> None:
            for before, which, during in plan:
                time.sleep(before / 1e3)
                asked = time.monotonic_ns()
                with locks[which]:
                    got = time.monotonic_ns()
                    time.sleep(during / 1e3)
                    log[which].append((asked, got, time.monotonic_ns()))

        threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return log

    policy: Any = {} if seed is None else {"policy": "random", "seed": seed}
    for uses in simdist.run(body, world_size=1, **policy).values[0]:
        for asked, got, left in uses:
            inside = [use for use in uses if use[1] <= got < use[2]]
            assert len(inside) <= places
            assert asked <= got <= left
            if asked < got:  # it waited, so all places were taken until then
                assert got in [use[2] for use in uses]
        for first, second in pairwise(sorted(uses, key=lambda use: use[1])):
            assert first[0] <= second[0] or first[1] == second[1]
    total_ms = max(sum(before + during for before, _, during in plan) for plan in plans)
    assert simdist.run(body, world_size=1, **policy).virtual_time_ns >= total_ms * 1_000_000


@given(
    batches=st.lists(st.lists(_MS, max_size=5), min_size=1, max_size=3),
    takers=st.lists(_MS, min_size=1, max_size=3),
    size=st.integers(0, 3),
    kind=st.sampled_from(["Queue", "SimpleQueue"]),
    seed=st.none() | st.integers(0, 9),
)
def test_queues_lose_nothing_and_keep_the_order(
    batches: list[list[int]], takers: list[int], size: int, kind: str, seed: int | None
) -> None:
    def body() -> tuple[list[Any], int]:
        line: Any = queue.Queue(size) if kind == "Queue" else queue.SimpleQueue()
        taken: list[Any] = []
        most = 0

        def give(number: int, batch: list[int]) -> None:
            nonlocal most
            for index, pause_ms in enumerate(batch):
                time.sleep(pause_ms / 1e3)
                line.put((number, index))
                most = max(most, line.qsize())

        def take(pause_ms: int) -> None:
            while True:
                item = line.get()
                if item is None:
                    return
                taken.append(item)
                time.sleep(pause_ms / 1e3)

        givers = [threading.Thread(target=give, args=each) for each in enumerate(batches)]
        others = [threading.Thread(target=take, args=(pause_ms,)) for pause_ms in takers]
        for thread in givers + others:
            thread.start()
        for thread in givers:
            thread.join()
        for _ in others:
            line.put(None)
        for thread in others:
            thread.join()
        return taken, most

    policy: Any = {} if seed is None else {"policy": "random", "seed": seed}
    taken, most = simdist.run(body, world_size=1, **policy).values[0]

    assert sorted(taken) == [(number, index) for number, batch in enumerate(batches) for index in range(len(batch))]
    if len(takers) == 1 or seed is None:
        for number in range(len(batches)):
            assert [index for giver, index in taken if giver == number] == list(range(len(batches[number])))
    if kind == "Queue" and size:
        assert most <= size


# -- locks that ranks share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", [LOCK, RLOCK, CONDITION])
def test_a_lock_made_before_the_world_is_one_in_each_rank(lock: Any) -> None:
    def body() -> list[Any]:
        dist.init_process_group("gloo")
        found: list[Any] = []
        with lock:
            dist.barrier()  # every rank is inside

            def other() -> None:
                with lock:
                    found.append(time.monotonic())

            threading.Thread(target=other).start()
            time.sleep(1 + int(os.environ[RANK]) - time.monotonic())
        time.sleep(1)
        return found

    values = simdist.run(body, world_size=3).values

    assert [round(value[0], 3) for value in values] == [1.0, 2.0, 3.0]
    assert lock.acquire(False)
    lock.release()


def test_a_recursive_lock_is_recursive_in_each_rank() -> None:
    def body() -> list[Any]:
        with RLOCK:
            time.sleep(1)
            with RLOCK:
                time.sleep(1)
            found = [RLOCK._is_owned()]  # type: ignore[attr-defined]
        found.append(RLOCK._is_owned())  # type: ignore[attr-defined]
        try:
            RLOCK.release()
        except RuntimeError as error:
            found.append(str(error))
        return [*found, time.monotonic()]

    assert simdist.run(body, world_size=2).values == [[True, False, "cannot release un-acquired lock", 2.0]] * 2


def test_a_condition_made_before_the_world_works_in_a_rank() -> None:
    def body() -> list[Any]:
        def notify() -> None:
            CONDITION.acquire()
            CONDITION.notify_all()
            CONDITION.release()

        later(1, notify)
        with CONDITION:
            return [CONDITION.wait(10), time.monotonic(), CONDITION.wait(0.5), time.monotonic()]

    assert alone(body).value == [True, 1 + LATE_S, False, pytest.approx(1.5 + 2 * LATE_S)]


def test_methods_that_were_taken_before_the_world_wait_in_virtual_time_too() -> None:
    def body() -> list[float]:
        def other() -> None:
            TAKE()
            found.append(time.monotonic())
            GIVE()

        found: list[float] = []
        TAKE()
        threading.Thread(target=other).start()
        time.sleep(1)
        GIVE()
        time.sleep(1)
        return found

    assert simdist.run(body, world_size=2).values == [[1.0], [1.0]]


SHARED = [multiprocessing.get_context("fork").Lock(), multiprocessing.get_context("fork").RLock()]


@pytest.mark.parametrize("lock", SHARED)
def test_locks_of_multiprocessing_are_each_ranks_own_too(lock: Any) -> None:
    def body() -> list[float]:
        found: list[float] = []

        def other() -> None:
            with lock:
                found.append(time.monotonic())

        lock.acquire()
        threading.Thread(target=other).start()
        time.sleep(1 + int(os.environ[RANK]))
        lock.release()
        time.sleep(1)
        return [*found, lock.acquire(timeout=1), lock.release()]

    assert simdist.run(body, world_size=2).values == [[1.0, True, None], [2.0, True, None]]
    assert lock.acquire(False)
    lock.release()


class Model:
    @functools.cached_property
    def groups(self) -> float:
        dist.init_process_group("gloo")
        time.sleep(int(os.environ[RANK]))
        dist.barrier()
        return time.monotonic()


def test_a_rank_may_park_inside_a_cached_property() -> None:
    values = simdist.run(lambda: Model().groups, world_size=3).values

    assert [round(value, 2) for value in values] == [2.0, 2.0, 2.0]


def test_a_rank_may_park_inside_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2)\nmoment = time.monotonic()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def body() -> tuple[float, float]:
        time.sleep(int(os.environ[RANK]))
        import slow_to_import  # type: ignore[import-not-found]

        return slow_to_import.moment, time.monotonic()

    try:
        assert simdist.run(body, world_size=2).values == [(2.0, 2.0), (2.0, 2.0)]
    finally:
        sys.modules.pop("slow_to_import", None)


def test_a_handler_of_logging_that_parks_stops_nobody_else() -> None:
    logger = logging.getLogger("test_locks")
    said: list[tuple[str, float]] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(1)
            said.append((f"{record.threadName} {record.getMessage()}", time.monotonic()))

    handler = Slow()
    logger.addHandler(handler)
    logger.propagate = False

    def body() -> None:
        threading.Thread(target=logger.warning, args=("second",), name="other").start()
        logger.warning("first")

    try:
        simdist.run(body, world_size=2).raise_for_failure()
    finally:
        logger.removeHandler(handler)
    assert said == [("other second", 1.0)] * 2 + [("MainThread first", 2.0)] * 2


def test_a_lock_that_a_killed_rank_held_is_free_for_others_and_afterwards() -> None:
    def body() -> float:
        time.sleep(int(os.environ[RANK]))
        with LOCK:
            time.sleep(1)
        return time.monotonic()

    result = simdist.run(body, world_size=2, faults=[Crash(rank=0, at_ns=500_000_000)])

    assert [rank.status for rank in result.ranks] == ["killed", "returned"]
    assert result.ranks[1].value == 2.0
    assert not LOCK.locked()


def test_a_lock_that_nobody_gave_back_is_free_after_the_world() -> None:
    def body() -> None:
        LOCK.acquire()
        RLOCK.acquire()
        RLOCK.acquire()

    simdist.run(body, world_size=2)

    assert not LOCK.locked()
    thread_got: list[bool] = []
    thread = threading.Thread(target=lambda: thread_got.append(RLOCK.acquire(False)))
    thread.start()
    thread.join()
    assert thread_got == [True]
    RLOCK._at_fork_reinit()  # type: ignore[attr-defined]


# -- threads of the host --------------------------------------------------------------------------------------------


def test_a_thread_of_the_host_keeps_a_rank_out_and_waits_for_one() -> None:
    go, done = threading.Event(), threading.Event()
    order: list[str] = []

    def host() -> None:
        go.wait(10)
        with LOCK:
            order.append("host")
        done.set()

    def body() -> None:
        with LOCK:
            go.set()
            original(time.sleep)(0.02)
            order.append("rank")
        wait_for_host(done)

    thread = threading.Thread(target=host)
    thread.start()
    simdist.run(body, world_size=1).raise_for_failure()
    thread.join()

    assert order == ["rank", "host"]


def test_a_lock_that_a_thread_of_the_host_keeps_does_not_stop_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_locks, "_HOST_S", 0.02)
    taken, done = threading.Event(), threading.Event()

    def host() -> None:
        with LOCK:
            taken.set()
            done.wait(30)

    def body() -> tuple[bool, float]:
        got = LOCK.acquire(timeout=0.25)
        done.set()
        return got, time.monotonic()

    thread = threading.Thread(target=host)
    thread.start()
    taken.wait(10)
    value = alone(body).value
    thread.join()

    assert value == (False, 0.25 + LATE_S)
