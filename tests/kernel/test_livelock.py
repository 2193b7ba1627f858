"""Tasks that sleep, or poll without success, forever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from simdist.errors import LivelockError
from simdist.kernel import Simulation
from tests.kernel.fakes import Waiting


def sleep_for_ever(simulation: Simulation) -> None:
    while True:
        simulation.sleep(5)


def test_a_world_that_only_sleeps_ends_with_a_report_of_every_line() -> None:
    simulation = Simulation(idle_turns=100)
    for name in ("a", "b"):
        simulation.spawn(partial(sleep_for_ever, simulation), name)

    with pytest.raises(LivelockError) as caught:
        simulation.run()
    leaked = simulation.close()

    first, *tasks, last = str(caught.value).splitlines()
    assert first == "at 0.000000155 s nothing has happened for long but sleeping and asking:"
    assert [line.split(" in ")[0][:4] for line in tasks] == ["  a ", "  b "]
    assert all("test_livelock.py:" in line and "in sleep_for_ever, in sleep until" in line for line in tasks)
    assert last == "a loop that would have ended may sleep longer each time, or call simdist.step(i) when it gets on"
    assert leaked == []


def test_events_are_progress_unless_they_say_that_someone_asked() -> None:
    def work(*, asks: bool) -> None:
        simulation = Simulation(idle_turns=100)

        def steps() -> None:
            for _ in range(1_000_000 if asks else 1_000):
                simulation.sleep(5)
                simulation.events.add((simulation.now_ns, "step", 0))
                simulation.polls += asks

        simulation.spawn(steps, "steps")
        try:
            simulation.run()
        finally:
            simulation.close()

    work(asks=False)
    with pytest.raises(LivelockError):
        work(asks=True)


def polled(simulation: Simulation, *, every_ns: int = 1, times: int) -> None:
    """Loop `times` times; other tasks must not make it end early."""
    for _ in range(times):
        simulation.sleep(every_ns)


def ended_ns(*bodies: Callable[[Simulation], None], idle_turns: int = 1_000) -> int:
    """Return when a world of these tasks ends, negative for a livelock."""
    simulation = Simulation(idle_turns=idle_turns)
    for index, body in enumerate(bodies):
        simulation.spawn(partial(body, simulation), f"task {index}")
    try:
        simulation.run()
    except LivelockError:
        return -simulation.now_ns
    finally:
        simulation.close()
    return simulation.now_ns


def test_tasks_that_repeat_themselves_have_less_time_than_those_that_count() -> None:
    def repeats(simulation: Simulation) -> None:
        while True:
            simulation.sleep(1)

    def counts(simulation: Simulation) -> None:
        count = 0
        while count >= 0:
            count += 1
            simulation.sleep(1)

    def reads(simulation: Simulation) -> None:
        while simulation.read_clock() >= 0:
            simulation.sleep(1)

    assert [-1_300 < ended_ns(body) < -1_000 for body in (repeats, counts, reads)] == [True, False, False]
    assert [-6_000 < ended_ns(body) < -5_000 for body in (counts, reads)] == [True, True]


def test_a_loop_that_counts_comes_to_its_end() -> None:
    assert ended_ns(lambda simulation: polled(simulation, times=4_000)) == 4_000


def test_a_poller_may_go_on_while_another_comes_back_from_a_sleep() -> None:
    def polls(simulation: Simulation) -> None:
        while not done:
            simulation.sleep(1)

    def sleeps(simulation: Simulation) -> None:
        simulation.sleep(20_000)
        done.append(True)

    done: list[bool] = []

    assert ended_ns(polls, sleeps) == 20_000


def test_a_poller_may_go_on_while_a_fault_or_a_message_is_due() -> None:
    def polls(simulation: Simulation) -> None:
        simulation.call_at(20_000, lambda: done.append(True))
        while not done:
            simulation.sleep(1)

    done: list[bool] = []

    assert ended_ns(polls) == 20_000


def test_a_poller_has_no_more_time_while_another_wakes_up_for_nothing() -> None:
    def often(simulation: Simulation) -> None:
        while True:
            simulation.sleep(1)

    def seldom(simulation: Simulation) -> None:
        while True:
            simulation.sleep(100)

    assert -1_300 < ended_ns(often, seldom) < -1_000


def test_what_is_due_is_nothing_to_wait_for_where_time_stands_still() -> None:
    def stands_still(simulation: Simulation) -> None:
        while True:
            simulation.sleep(0)

    def sleeps(simulation: Simulation) -> None:
        simulation.sleep(1)

    assert ended_ns(stands_still, sleeps) == 0


@pytest.mark.parametrize(("deadline_ns", "reached"), [(1_500, True), (1_000_000, False)])
def test_a_deadline_is_waited_for_if_it_is_near(deadline_ns: int, reached: bool) -> None:
    def polls(simulation: Simulation) -> None:
        while not done:
            simulation.sleep(1)

    def waits(simulation: Simulation) -> None:
        while simulation.park(Waiting(), deadline_ns):
            pass
        done.append(True)

    done: list[bool] = []

    assert (ended_ns(polls, waits) > 0) is reached


def test_who_asks_for_ever_is_reported() -> None:
    simulation = Simulation(idle_turns=100)

    def ask_for_ever() -> None:
        while True:
            simulation.ask()

    simulation.spawn(ask_for_ever, "a")

    with pytest.raises(LivelockError, match="in ask_for_ever, in sleep until"):
        simulation.run()
    simulation.close()


def test_questions_take_ever_longer_until_something_else_takes_time() -> None:
    simulation, pauses = Simulation(), list[int]()

    def ask(times: int) -> None:
        for _ in range(times):
            before_ns = simulation.now_ns
            simulation.ask()
            pauses.append(simulation.now_ns - before_ns)

    def body() -> None:
        ask(2_000)
        simulation.sleep(1)
        ask(1)

    simulation.spawn(body, "a")
    simulation.run()
    simulation.close()

    assert pauses[:129] == [1] * 128 + [2]
    assert pauses[-2:] == [10_000_000, 1]
