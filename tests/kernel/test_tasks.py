from __future__ import annotations

import _thread
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from simdist.errors import InternalError, SimdistError, ThreadLimitError
from simdist.kernel import Simulation, TaskKilled, make_policy
from tests.kernel.fakes import Script, Waiting, finish


def test_tasks_start_in_the_order_of_their_making() -> None:
    script = Script()
    for name in ("b", "a", "c"):
        script.task(name, lambda name=name: script.note(name))  # type: ignore[misc]

    assert script.run() == [(0, "b"), (0, "a"), (0, "c")]


def test_a_parked_task_goes_on_when_it_is_woken() -> None:
    script = Script()

    def waiter() -> None:
        script.note(f"woken: {script.park()}")

    def waker() -> None:
        script.simulation.sleep(8)
        script.simulation.wake(script.tasks["waiter"])
        script.note("waker goes on")

    script.task("waiter", waiter)
    script.task("waker", waker)

    assert script.run() == [(8, "waker goes on"), (8, "woken: True")]


def test_waking_a_task_that_is_not_parked_does_nothing() -> None:
    script = Script()

    def body() -> None:
        script.simulation.wake(script.tasks["body"])
        script.simulation.wake(script.tasks["done"])
        script.note(f"in time: {script.park(deadline_ns=5)}")

    script.task("done", lambda: None)
    script.task("body", body)

    assert script.run() == [(5, "in time: False")]


def test_a_deadline_ends_a_park_that_nobody_ends() -> None:
    script = Script()
    script.task("a", lambda: script.note(f"a {script.park(deadline_ns=30)}"))
    script.task("b", lambda: script.note(f"b {script.park(deadline_ns=20)}"))
    script.task("c", lambda: script.note(f"c {script.park(deadline_ns=20)}"))

    assert script.run() == [(20, "b False"), (20, "c False"), (30, "a False")]


def test_a_deadline_in_the_past_ends_a_park_at_once() -> None:
    script = Script()

    def body() -> None:
        script.simulation.sleep(9)
        script.note(f"{script.park(deadline_ns=4)}")

    script.task("body", body)

    assert script.run() == [(9, "False")]


def test_a_deadline_that_is_met_leaves_no_mark_on_time() -> None:
    script = Script()
    waiter = script.task("waiter", lambda: script.note(f"{script.park(deadline_ns=1_800_000_000_000)}"))
    script.simulation.call_at(3, lambda: script.simulation.wake(waiter))

    assert script.run() == [(3, "True")]
    assert script.simulation.now_ns == 3


def test_parks_after_an_expired_one_have_no_deadline() -> None:
    script = Script()

    def body() -> None:
        script.park(deadline_ns=2)
        script.note(f"{script.park()}")

    task = script.task("body", body)
    script.simulation.call_at(6, lambda: script.simulation.wake(task))

    assert script.run() == [(6, "True")]


class Limit:
    """A wait with a deadline."""

    def __init__(self, script: Script, deadline_ns: int) -> None:
        self.deadline_ns: int | None = deadline_ns
        self._script = script

    def expire(self) -> None:
        self._script.note("expired")


def test_whatever_has_a_deadline_can_be_watched() -> None:
    script = Script()
    script.sleepers(a=40)
    script.simulation.watch_deadline(Limit(script, 12))

    assert script.run() == [(12, "expired"), (40, "a")]


def test_a_watched_deadline_may_move_to_a_later_time() -> None:
    script = Script()
    limit = Limit(script, 12)
    script.simulation.watch_deadline(limit)
    script.sleepers(a=40)

    limit.deadline_ns = 25

    assert script.run() == [(25, "expired"), (40, "a")]


def test_an_unwatched_deadline_never_comes() -> None:
    script = Script()
    limit = Limit(script, 12)
    script.simulation.watch_deadline(limit)
    script.sleepers(a=40)

    script.simulation.unwatch_deadline(limit)
    script.simulation.unwatch_deadline(limit)

    assert script.run() == [(40, "a")]


def test_what_has_no_deadline_cannot_be_watched() -> None:
    script = Script()
    limit = Limit(script, 12)
    limit.deadline_ns = None

    with pytest.raises(InternalError, match="has no deadline to watch"):
        script.simulation.watch_deadline(limit)


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_escapes_from_a_task_is_kept_and_the_others_go_on(error: BaseException) -> None:
    script = Script()

    def fails() -> None:
        raise error

    task = script.task("fails", fails)
    script.sleepers(other=5)

    log = script.run()

    assert task.error is error
    assert log == [(5, "other")]


def test_the_switch_hook_sees_every_change_of_context_and_nothing_else() -> None:
    seen: list[tuple[Any, Any]] = []
    simulation = Simulation(on_switch=lambda leaving, entering: seen.append((leaving, entering)))
    simulation.spawn(lambda: simulation.sleep(2), "1", "A")
    simulation.spawn(lambda: None, "2", "A")
    simulation.spawn(lambda: simulation.sleep(1), "3", "B")

    finish(simulation)

    assert seen == [(None, "A"), ("A", "B"), ("B", "A"), ("A", None)]


def test_only_a_task_can_sleep() -> None:
    simulation = Simulation()

    with pytest.raises(SimdistError, match="this thread belongs to no simulated rank"):
        simulation.sleep(1)
    with pytest.raises(SimdistError, match="this thread belongs to no simulated rank"):
        simulation.check()


def test_only_the_thread_of_the_running_task_owns_the_world() -> None:
    simulation = Simulation()
    found = []

    def body() -> None:
        other = threading.Thread(target=lambda: found.append(simulation.owns_this_thread()))
        other.start()
        other.join()
        found.append(simulation.owns_this_thread())

    simulation.spawn(body, "body")

    finish(simulation)

    assert found == [False, True]
    assert not simulation.owns_this_thread()


def test_check_returns_the_running_task() -> None:
    script = Script()
    found = []
    task = script.task("body", lambda: found.append(script.simulation.check()))

    script.run()

    assert found == [task]


def test_a_bug_in_a_timer_is_an_internal_error_and_no_task_is_left() -> None:
    script = Script()
    script.sleepers(a=10)
    script.simulation.call_at(5, lambda: 1 // 0)  # type: ignore[arg-type]

    with pytest.raises(InternalError, match=r"the kernel failed: ZeroDivisionError.*please report it") as caught:
        script.simulation.run()
    leaked = script.simulation.close()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert leaked == []
    assert script.log == []


@pytest.mark.parametrize("refusal", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_task_for_which_the_system_has_no_thread_ends_the_world(refusal: Exception) -> None:
    script = Script()
    script.sleepers(a=10, b=20)
    script.task("c", lambda: script.note("c"))
    start = script.simulation.start_thread

    def refuse(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:
        if arguments[1].name == "c":
            raise refusal
        return start(function, arguments)

    script.simulation.start_thread = refuse

    with pytest.raises(
        ThreadLimitError, match=r"no thread for c: (can't start|MemoryError)(.|\n)* 2 of this world run"
    ):
        script.simulation.run()
    assert script.simulation.close() == []
    assert script.log == []


def test_a_world_leaves_no_thread_and_starts_one_when_a_task_first_runs() -> None:
    simulation = Simulation()
    before = _thread._count()
    counts = []
    for index in range(3):
        simulation.spawn(lambda: counts.append(_thread._count() - before), f"task {index}")

    finish(simulation)

    assert counts[0] == 1
    assert threading.active_count() == len(threading.enumerate())


def test_tasks_that_still_wait_are_unwound_at_the_end() -> None:
    script = Script()

    def waiter() -> None:
        try:
            script.park()
        except TaskKilled:
            script.note("unwound")
            raise
        finally:
            script.note("finally")

    task = script.task("waiter", waiter)
    script.sleepers(other=4)

    assert script.run() == [(4, "other"), (4, "unwound"), (4, "finally")]
    assert task.error is None


def test_a_task_that_swallows_exceptions_while_unwound_cannot_park_again() -> None:
    script = Script()

    def stubborn() -> None:
        for attempt in range(3):
            try:
                script.park()
            except BaseException as error:
                script.note(f"{attempt}: {type(error).__name__}")

    script.task("stubborn", stubborn)

    assert script.run() == [(0, "0: TaskKilled"), (0, "1: TaskKilled"), (0, "2: TaskKilled")]


@pytest.mark.real
def test_tasks_that_block_are_named_and_may_end_later() -> None:
    script = Script(Simulation(stall_s=0.2))
    enough = threading.Event()

    def endless() -> None:
        while not enough.is_set():
            try:
                script.simulation.park(Waiting())
            except TaskKilled:
                enough.wait()

    script.task("endless 1", endless)
    script.task("good", script.park)
    script.task("endless 2", endless)
    script.simulation.run()

    leaked = script.simulation.close()
    enough.set()

    assert leaked == ["endless 1", "endless 2"]


def test_a_thread_may_be_there_before_the_first_turn() -> None:
    simulation = Simulation()
    idents: list[int] = []

    def first() -> None:
        other = simulation.spawn(lambda: idents.append(_thread.get_ident()), "other")
        idents.append(simulation.begin(other))
        assert len(idents) == 1  # the task has not run yet
        simulation.sleep(1)

    simulation.spawn(first, "first")
    finish(simulation)

    assert idents[0] == idents[1] != 0


def test_a_task_that_began_and_never_ran_is_unwound() -> None:
    simulation = Simulation()
    ran: list[str] = []

    def first() -> None:
        other = simulation.spawn(lambda: ran.append("other"), "other")
        simulation.begin(other)
        simulation.kill(other)

    simulation.spawn(first, "first")
    finish(simulation)

    assert ran == []


def test_an_offer_lets_the_policy_choose_anew() -> None:
    def run(seed: int) -> str:
        simulation = Simulation(policy=make_policy("random", seed))
        order: list[str] = []

        def work(name: str) -> None:
            for _ in range(4):
                simulation.offer()
                order.append(name)

        for name in "ab":
            simulation.spawn(functools.partial(work, name), name)
        finish(simulation)
        return "".join(order)

    found = {run(seed) for seed in range(10)}

    assert all(sorted(order) == sorted("aaaabbbb") for order in found)
    assert len(found) > 3
