from __future__ import annotations

import functools

import pytest

from simdist.errors import DeadlockError
from simdist.kernel import describe_deadlock
from tests.kernel.fakes import Script, finish

MINUTES_NS = 60 * 1_000_000_000


def waits(
    script: Script, name: str, text: str, *others: str, after_ns: int = 0, deadline_ns: int | None = None
) -> None:
    """Spawn a task that works for a while and then waits for others."""

    def body() -> None:
        script.simulation.sleep(after_ns)
        script.park(text, *others, deadline_ns=deadline_ns)

    script.task(name, body)


def deadlock_of(script: Script) -> DeadlockError:
    finish(script.simulation)
    found = script.simulation.deadlock
    assert found is not None
    return found


def test_the_report_has_the_cycle_each_task_s_wait_and_who_has_finished() -> None:
    script = Script()
    waits(script, "rank 0", "recv(src=1)", "rank 1", after_ns=1_500_000)
    waits(script, "rank 1", "recv(src=0)", "rank 0", after_ns=2_000_000_250)
    waits(script, "rank 2", "barrier", "rank 0", "rank 1")
    script.sleepers(**{"rank 3": 7})

    found = deadlock_of(script)

    assert str(found) == (
        "deadlock at 2.000000250 s: rank 0 -> rank 1 -> rank 0\n"
        "  rank 0 waits in recv(src=1) since 0.001500000 s\n"
        "  rank 1 waits in recv(src=0) since 2.000000250 s\n"
        "  rank 2 waits in barrier since 0.000000000 s\n"
        "  finished before: rank 3"
    )
    assert found.report == str(found)
    assert found.cycle == ("rank 0", "rank 1", "rank 0")
    assert found.time_ns == 2_000_000_250


def test_the_report_is_an_event() -> None:
    script = Script()
    waits(script, "a", "b's part", "b", after_ns=3)
    waits(script, "b", "a's part", "a")

    found = deadlock_of(script)

    assert script.simulation.events.records == [(3, "deadlock", -1, ("a", "b", "a"), found.report)]


def test_a_task_can_wait_for_itself() -> None:
    script = Script()
    waits(script, "a", "itself", "a")

    assert deadlock_of(script).cycle == ("a", "a")


def test_the_shortest_cycle_through_its_first_task_is_reported() -> None:
    script = Script()
    waits(script, "a", "x", "b", "d")
    waits(script, "b", "x", "c")
    waits(script, "c", "x", "a")
    waits(script, "d", "x", "a")

    assert deadlock_of(script).cycle == ("a", "d", "a")


def test_a_chain_without_a_cycle_is_no_deadlock() -> None:
    script = Script()
    waits(script, "a", "x", "b")
    waits(script, "b", "x", "c")
    waits(script, "c", "x")

    finish(script.simulation)

    assert script.simulation.deadlock is None
    assert describe_deadlock(script.simulation) is None


@pytest.mark.parametrize("names", ["b", "ab"])
@pytest.mark.parametrize("what", ["pause", "kill", "wake"])
def test_waiting_for_tasks_that_something_happens_to_is_no_deadlock(what: str, names: str) -> None:
    script = Script()
    waits(script, "a", "x", "b")
    waits(script, "b", "x", "a")
    for name in names:
        script.simulation.call_at(5, functools.partial(getattr(script.simulation, what), script.tasks[name]))

    finish(script.simulation)

    assert script.simulation.deadlock is None


def test_a_deadlock_is_found_when_it_forms_although_everyone_has_a_timeout() -> None:
    script = Script()
    waits(script, "a", "x", "b", after_ns=4, deadline_ns=30 * MINUTES_NS)
    waits(script, "b", "x", "a", after_ns=9, deadline_ns=31 * MINUTES_NS)

    found = deadlock_of(script)

    assert found.time_ns == 9
    assert script.simulation.now_ns == 31 * MINUTES_NS


def test_the_first_deadlock_stays_when_timeouts_resolve_it_and_one_follows() -> None:
    script = Script()

    def twice(other: str) -> None:
        script.park("first", other, deadline_ns=10)
        script.park("second", other, deadline_ns=20)

    script.task("a", lambda: twice("b"))
    script.task("b", lambda: twice("a"))

    found = deadlock_of(script)

    assert found.time_ns == 0
    assert [kind for _, kind, *_ in script.simulation.events.records] == ["deadlock"]


@pytest.mark.parametrize(
    ("tasks", "last"), [(32, "  task 31 waits in x since 0.000000000 s"), (40, "  and 8 more tasks")]
)
def test_a_long_report_is_cut(tasks: int, last: str) -> None:
    script = Script()
    for index in range(tasks):
        waits(script, f"task {index}", "x", f"task {(index + 1) % tasks}")

    lines = str(deadlock_of(script)).splitlines()

    assert len(lines) == 1 + 32 + (tasks > 32)
    assert lines[-1] == last


def test_a_long_list_of_finished_tasks_is_cut() -> None:
    script = Script()
    script.sleepers(**{f"{index}": 1 for index in range(18)})
    waits(script, "a", "itself", "a")

    lines = str(deadlock_of(script)).splitlines()

    assert lines[-1] == f"  finished before: {', '.join(str(index) for index in range(16))} and 2 more"
