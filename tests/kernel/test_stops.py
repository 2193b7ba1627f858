"""A world that runs in parts: stops are exact, and leave no trace."""

from __future__ import annotations

import functools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdist.errors import SimdistError
from simdist.kernel import Simulation
from tests.kernel.fakes import Script, finish


def test_a_stop_comes_after_everything_else_at_its_instant() -> None:
    script = Script()

    def again() -> None:
        script.simulation.sleep(5)
        script.note("first")
        script.simulation.sleep(0)
        script.note("second")
        script.simulation.sleep(1)
        script.note("later")

    script.task("again", again)

    assert script.simulation.run_until(5)
    assert (script.simulation.now_ns, script.log) == (5, [(5, "first"), (5, "second")])
    assert script.run()[-1] == (6, "later")


def test_time_between_two_events_is_a_time_to_stop_at() -> None:
    script = Script()
    script.sleepers(a=10)

    assert script.simulation.run_until(7)
    assert script.simulation.now_ns == 7
    assert script.run() == [(10, "a")]


def test_a_stop_at_zero_runs_what_is_runnable_at_once() -> None:
    script = Script()
    script.task("now", lambda: script.note("now"))
    script.sleepers(later=1)

    assert script.simulation.run_until(0)
    assert script.log == [(0, "now")]
    finish(script.simulation)


def test_a_world_that_ends_before_the_stop_stands_still_at_its_end() -> None:
    script = Script()
    script.sleepers(a=3)

    assert not script.simulation.run_until(1_000)
    assert script.simulation.now_ns == 3
    assert not script.simulation.run_until(1_000)
    assert script.simulation.close() == []


def test_a_deadline_strikes_on_its_way_to_the_stop_and_not_before() -> None:
    script = Script()

    def waits() -> None:
        script.note("woken" if script.park(deadline_ns=50) else "expired")

    script.task("waits", waits)

    assert script.simulation.run_until(49)
    assert script.log == []
    assert not script.simulation.run_until(50)
    assert script.log == [(50, "expired")]
    assert script.simulation.close() == []


def test_tasks_that_nobody_wakes_let_time_pass_and_can_still_be_woken() -> None:
    script = Script()

    def waits() -> None:
        script.park()
        script.note("woken")

    task = script.task("waits", waits)

    assert script.simulation.run_until(10)
    assert script.simulation.run_until(20)
    assert script.simulation.now_ns == 20
    script.simulation.wake(task)
    assert script.run() == [(20, "woken")]


def test_a_deadlock_is_found_when_it_forms_although_the_world_stops_later() -> None:
    script = Script()
    script.sleepers(other=3)
    script.task("a", lambda: script.park("b's word", "b"))
    script.task("b", lambda: script.park("a's word", "a"))

    assert script.simulation.run_until(100)
    assert script.simulation.deadlock is not None
    assert script.simulation.deadlock.time_ns == 3
    finish(script.simulation)


def test_no_task_is_current_while_the_world_stands() -> None:
    seen: list[object] = []
    simulation = Simulation(on_switch=lambda leaving, entering: seen.append((leaving, entering)))
    simulation.spawn(lambda: simulation.sleep(10), "sleeper", "context")

    simulation.run_until(5)

    assert simulation.current is None
    assert not simulation.owns_this_thread()
    assert seen == [(None, "context"), ("context", None)]
    finish(simulation)


def test_time_does_not_go_back() -> None:
    simulation = Simulation()
    simulation.spawn(lambda: simulation.sleep(10), "sleeper")
    simulation.run_until(5)

    with pytest.raises(SimdistError, match="virtual time is 5 ns already; it does not go back to 4 ns"):
        simulation.run_until(4)
    finish(simulation)


@pytest.mark.real
def test_a_task_that_nobody_watches_may_take_its_time() -> None:
    simulation = Simulation(stall_s=0.1)
    simulation.watched = False
    begin = time.monotonic()

    def takes_long() -> None:
        while time.monotonic() < begin + 0.4:
            pass
        simulation.watched = True

    simulation.spawn(takes_long, "slow")

    finish(simulation)


@given(
    spans=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=4),
    stops=st.lists(st.integers(0, 30), max_size=6),
)
def test_stops_change_nothing(spans: list[list[int]], stops: list[int]) -> None:
    def world() -> Script:
        script = Script()

        def body(index: int) -> None:
            for span_ns in spans[index]:
                script.simulation.sleep(span_ns)
                script.note(str(index))

        for index in range(len(spans)):
            script.task(str(index), functools.partial(body, index))
        return script

    whole = world().run()
    script = world()
    for stop_ns in sorted(stops):
        alive = script.simulation.run_until(max(stop_ns, script.simulation.now_ns))
        assert script.log == [entry for entry in whole if entry[0] <= script.simulation.now_ns]
        assert script.simulation.now_ns == stop_ns or not alive

    assert script.run() == whole
