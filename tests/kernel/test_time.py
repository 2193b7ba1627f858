from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simdist.kernel import Simulation
from tests.kernel.fakes import Script, finish


def test_a_world_starts_at_zero_and_its_clock_is_an_integer() -> None:
    simulation = Simulation()

    assert simulation.now_ns == 0
    assert type(simulation.now_ns) is int


def test_a_sleep_takes_exactly_its_span() -> None:
    script = Script()
    script.sleepers(a=7, b=3, c=12_345_678_901_234_567)

    assert script.run() == [(3, "b"), (7, "a"), (12_345_678_901_234_567, "c")]
    assert type(script.simulation.now_ns) is int


def test_sleepers_of_one_instant_wake_in_the_order_in_which_they_lay_down() -> None:
    script = Script()
    script.sleepers(c=5, a=5, b=5)

    assert script.run() == [(5, "c"), (5, "a"), (5, "b")]


def test_an_instant_has_the_same_order_whenever_its_sleeps_began() -> None:
    script = Script()

    def late() -> None:
        script.simulation.sleep(4)
        script.simulation.sleep(1)
        script.note("late")

    script.task("late", late)
    script.sleepers(early=5)

    assert script.run() == [(5, "early"), (5, "late")]


def test_a_sleep_of_zero_lets_every_runnable_task_go_first() -> None:
    script = Script()

    def polite() -> None:
        script.note("before")
        script.simulation.sleep(0)
        script.note("after")

    script.task("polite", polite)
    script.task("other", lambda: script.note("other"))

    assert script.run() == [(0, "before"), (0, "other"), (0, "after")]


def test_a_negative_sleep_is_one_of_zero() -> None:
    script = Script()
    script.sleepers(a=-5)

    assert script.run() == [(0, "a")]


def test_timers_fire_by_time_and_then_by_the_order_of_their_making() -> None:
    script = Script()
    for name, time_ns in (("c", 9), ("a", 4), ("d", 9), ("b", 4)):
        script.simulation.call_at(time_ns, lambda name=name: script.note(name))  # type: ignore[misc]
    script.sleepers(end=10)

    assert script.run() == [(4, "a"), (4, "b"), (9, "c"), (9, "d"), (10, "end")]


def test_a_timer_in_the_past_fires_now() -> None:
    script = Script()

    def body() -> None:
        script.simulation.sleep(6)
        script.simulation.call_at(2, lambda: script.note("timer"))
        script.simulation.sleep(1)

    script.task("body", body)

    assert script.run() == [(6, "timer")]


def test_a_cancelled_timer_does_not_fire_and_time_does_not_go_there() -> None:
    script = Script()
    timer = script.simulation.call_at(100, lambda: script.note("timer"))
    script.sleepers(a=3)

    timer.cancel()
    timer.cancel()

    assert script.run() == [(3, "a")]
    assert script.simulation.now_ns == 3


def test_cancelling_a_timer_that_has_fired_does_nothing() -> None:
    script = Script()
    timer = script.simulation.call_at(1, lambda: script.note("timer"))

    def body() -> None:
        script.simulation.sleep(2)
        timer.cancel()
        script.simulation.sleep(2)
        script.note("body")

    script.task("body", body)

    assert script.run() == [(1, "timer"), (4, "body")]


def test_a_timer_can_make_timers_and_tasks() -> None:
    script = Script()
    simulation = script.simulation

    def grow() -> None:
        simulation.call_at(simulation.now_ns, lambda: script.note("timer"))
        script.task("task", lambda: script.note("task"))

    simulation.call_at(5, grow)
    script.sleepers(end=9)

    assert script.run() == [(5, "task"), (5, "timer"), (9, "end")]


def test_a_world_ends_with_its_last_task_whatever_timers_are_left() -> None:
    script = Script()
    script.simulation.call_at(50, lambda: script.note("never"))
    script.sleepers(a=3)

    assert script.run() == [(3, "a")]
    assert script.simulation.now_ns == 3


def test_a_world_that_is_kept_open_waits_for_the_tasks_to_come() -> None:
    script = Script()
    simulation = script.simulation

    def restart() -> None:
        script.sleepers(second=5)
        simulation.let_end()

    def first() -> None:
        simulation.keep_open()
        simulation.call_at(20, restart)

    script.task("first", first)

    assert script.run() == [(25, "second")]


def test_a_world_without_tasks_is_over() -> None:
    simulation = Simulation()

    finish(simulation)

    assert simulation.now_ns == 0


@given(st.lists(st.lists(st.integers(0, 1000), max_size=6), max_size=6))
def test_time_never_runs_back_and_ends_at_the_longest_chain_of_sleeps(chains: list[list[int]]) -> None:
    script = Script()

    def walk(chain: list[int]) -> None:
        for span_ns in chain:
            begin = script.simulation.now_ns
            script.simulation.sleep(span_ns)
            script.note(f"{script.simulation.now_ns - begin - span_ns}")

    for index, chain in enumerate(chains):
        script.task(f"task {index}", lambda chain=chain: walk(chain))  # type: ignore[misc]

    log = script.run()

    assert [entry for _, entry in log] == ["0"] * sum(len(chain) for chain in chains)
    assert [time_ns for time_ns, _ in log] == sorted(time_ns for time_ns, _ in log)
    assert script.simulation.now_ns == max((sum(chain) for chain in chains), default=0)
