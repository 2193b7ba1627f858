from __future__ import annotations

import pytest

from simdist.kernel import TaskKilled
from tests.kernel.fakes import Script


def test_a_killed_task_never_runs_and_its_finally_waits_for_the_teardown() -> None:
    script = Script()

    def victim() -> None:
        try:
            script.simulation.sleep(100)
            script.note("alive")
        finally:
            script.note("finally")

    task = script.task("victim", victim)
    script.simulation.call_at(5, lambda: script.simulation.kill(task))
    script.sleepers(other=20)

    assert script.run() == [(20, "other"), (20, "finally")]
    assert script.simulation.now_ns == 20


def test_what_a_killed_task_does_while_it_is_unwound_is_refused() -> None:
    script = Script()

    def victim() -> None:
        try:
            script.park()
        finally:
            for action in (script.simulation.check, lambda: script.simulation.sleep(1), script.park):
                with pytest.raises(TaskKilled):
                    action()
            script.note("refused")

    task = script.task("victim", victim)
    script.simulation.call_at(5, lambda: script.simulation.kill(task))
    script.sleepers(other=9)

    assert script.run() == [(9, "other"), (9, "refused")]


def test_a_task_that_kills_itself_does_not_come_back() -> None:
    script = Script()

    def suicide() -> None:
        try:
            script.simulation.kill(script.tasks["suicide"])
            script.note("came back")
        except Exception:
            script.note("as an Exception")

    script.task("suicide", suicide)
    script.sleepers(other=3)

    assert script.run() == [(3, "other")]


def test_a_task_killed_before_its_first_turn_never_starts() -> None:
    script = Script()
    victim = None

    def killer() -> None:
        assert victim is not None
        script.simulation.kill(victim)

    script.task("killer", killer)
    victim = script.task("victim", lambda: script.note("started"))

    assert script.run() == []


def test_a_killed_task_does_not_wait_for_its_deadline() -> None:
    script = Script()
    task = script.task("victim", lambda: script.park(deadline_ns=500))
    script.simulation.call_at(7, lambda: script.simulation.kill(task))
    script.sleepers(other=8)

    script.run()

    assert script.simulation.now_ns == 8


def test_killing_twice_or_after_the_end_does_nothing() -> None:
    script = Script()
    victim = script.task("victim", script.park)
    done = script.task("done", lambda: None)

    def killer() -> None:
        for task in (victim, victim, done):
            script.simulation.kill(task)
        script.simulation.sleep(4)
        script.note("killer")

    script.task("killer", killer)

    assert script.run() == [(4, "killer")]


def test_waking_a_killed_task_does_nothing() -> None:
    script = Script()

    def victim() -> None:
        script.park()
        script.note("alive")

    task = script.task("victim", victim)

    def killer() -> None:
        script.simulation.kill(task)
        script.simulation.wake(task)
        script.simulation.sleep(1)

    script.task("killer", killer)

    assert script.run() == []


def test_a_paused_sleeper_goes_on_when_it_is_resumed() -> None:
    script = Script()
    script.sleepers(a=5, b=5)
    script.simulation.call_at(2, lambda: script.simulation.pause(script.tasks["a"]))
    script.simulation.call_at(30, lambda: script.simulation.resume(script.tasks["a"]))

    assert script.run() == [(5, "b"), (30, "a")]


def test_a_pause_that_ends_before_the_sleep_costs_nothing() -> None:
    script = Script()
    script.sleepers(a=50)
    script.simulation.call_at(2, lambda: script.simulation.pause(script.tasks["a"]))
    script.simulation.call_at(30, lambda: script.simulation.resume(script.tasks["a"]))

    assert script.run() == [(50, "a")]


def test_the_running_task_stops_at_its_next_park() -> None:
    script = Script()

    def body() -> None:
        script.simulation.pause(script.tasks["body"])
        script.note("still running")
        script.simulation.sleep(1)
        script.note("resumed")

    task = script.task("body", body)
    script.simulation.call_at(10, lambda: script.simulation.resume(task))

    assert script.run() == [(0, "still running"), (10, "resumed")]


def test_a_task_paused_before_its_first_turn_starts_when_it_is_resumed() -> None:
    script = Script()
    late = None

    def early() -> None:
        assert late is not None
        script.simulation.pause(late)
        script.simulation.sleep(10)
        script.simulation.resume(late)

    script.task("early", early)
    late = script.task("late", lambda: script.note("late"))

    assert script.run() == [(10, "late")]


def test_a_wake_while_paused_is_not_lost() -> None:
    script = Script()

    def body() -> None:
        script.park()
        script.note("woken")

    task = script.task("body", body)
    script.simulation.call_at(1, lambda: script.simulation.pause(task))
    script.simulation.call_at(2, lambda: script.simulation.wake(task))
    script.simulation.call_at(3, lambda: script.simulation.resume(task))

    assert script.run() == [(3, "woken")]


def test_a_resume_without_a_wake_wakes_nobody() -> None:
    script = Script()
    task = script.task("body", lambda: script.note(f"{script.park(deadline_ns=9)}"))
    script.simulation.call_at(1, lambda: script.simulation.pause(task))
    script.simulation.call_at(3, lambda: script.simulation.resume(task))
    script.simulation.call_at(4, lambda: script.simulation.resume(task))

    assert script.run() == [(9, "False")]


def test_a_task_paused_for_good_does_not_hold_the_world_up() -> None:
    script = Script()
    script.sleepers(a=5, b=6)
    script.simulation.call_at(2, lambda: script.simulation.pause(script.tasks["a"]))

    assert script.run() == [(6, "b")]
    assert script.simulation.deadlock is None


def test_a_paused_task_can_be_killed() -> None:
    script = Script()
    script.sleepers(a=5, b=40)
    for time_ns, action in (
        (2, script.simulation.pause),
        (10, script.simulation.kill),
        (20, script.simulation.resume),
    ):
        script.simulation.call_at(time_ns, lambda action=action: action(script.tasks["a"]))  # type: ignore[misc]

    assert script.run() == [(40, "b")]
