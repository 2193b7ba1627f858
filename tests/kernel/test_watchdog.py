from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simdist.errors import StallError
from simdist.kernel import Simulation
from tests.kernel.fakes import Script, Waiting


@contextmanager
def taken_lock() -> Iterator[_thread.LockType]:
    """A real lock that nobody gives back before the end of the block."""
    lock = _thread.allocate_lock()
    lock.acquire()
    yield lock
    lock.release()


@pytest.mark.real
def test_a_task_that_blocks_on_a_real_lock_fails_the_run_with_its_stack() -> None:
    script = Script(Simulation(stall_s=0.2))

    def waits_for_a_real_lock() -> None:
        with lock:
            script.note("got the lock")

    with taken_lock() as lock:
        script.sleepers(early=3)
        script.task("stuck", waits_for_a_real_lock)
        with pytest.raises(StallError) as caught:
            script.simulation.run()
        leaked = script.simulation.close()

    assert caught.value.task == "stuck"
    assert 0.2 <= caught.value.seconds < 60
    assert str(caught.value).startswith(
        f"stuck has run for {caught.value.seconds:g} s of real time without giving the baton back; "
        "it blocks on something outside the simulation, here:\n"
    )
    assert "in waits_for_a_real_lock\n    with lock:" in caught.value.stack
    assert leaked == ["stuck"]
    assert script.log == []


@pytest.mark.real
def test_an_endless_loop_fails_the_run_and_its_task_is_ended() -> None:
    script = Script(Simulation(stall_s=0.2))

    def spins() -> None:
        while True:
            pass

    script.task("waits", script.park)
    script.task("spins", spins)
    with pytest.raises(StallError) as caught:
        script.simulation.run()
    leaked = script.simulation.close()

    assert caught.value.task == "spins"
    assert "in spins" in caught.value.stack
    assert leaked == []


@pytest.mark.real
def test_a_long_computation_that_gives_the_baton_back_is_no_stall() -> None:
    script = Script(Simulation(stall_s=0.5))
    patience = threading.Event()

    def works() -> None:
        for _ in range(7):
            patience.wait(0.1)
            script.simulation.sleep(1)
        script.note("done")

    script.task("works", works)

    assert script.run() == [(7, "done")]


def test_progress_tells_time_and_events_while_the_world_runs() -> None:
    told: list[tuple[int, int]] = []
    heard = threading.Event()

    def progress(now_ns: int, events: int) -> None:
        told.append((now_ns, events))
        heard.set()

    simulation = Simulation(progress=progress)

    def body() -> None:
        simulation.sleep(42)
        simulation.events.add((42, "something", 0))
        heard.clear()
        assert heard.wait(30)

    simulation.spawn(body, "body")
    simulation.run()

    assert simulation.close() == []
    assert told[-1] == (42, 1)
    assert simulation.tasks[0].error is None


class Interrupt(KeyboardInterrupt):
    """As Ctrl-C raises it in the host's thread."""


def interrupts(now_ns: int, events: int) -> None:
    raise Interrupt


def test_an_interrupt_ends_a_world_of_sleepers_and_leaves_no_thread() -> None:
    simulation = Simulation(progress=interrupts)

    def forever() -> None:
        while True:
            simulation.sleep(1)

    for index in range(3):
        simulation.spawn(forever, f"task {index}")
    with pytest.raises(Interrupt):
        simulation.run()

    assert simulation.close() == []


def test_an_interrupt_ends_a_world_that_never_leaves_its_instant() -> None:
    simulation = Simulation(progress=interrupts)

    def ping(other: int) -> None:
        while True:
            simulation.wake(simulation.tasks[other])
            simulation.park(Waiting())

    simulation.spawn(lambda: ping(1), "task 0")
    simulation.spawn(lambda: ping(0), "task 1")
    with pytest.raises(Interrupt):
        simulation.run()

    assert simulation.close() == []


def test_an_interrupt_ends_a_task_that_only_computes() -> None:
    simulation = Simulation(progress=interrupts)

    def spins() -> None:
        while True:
            pass

    def waits() -> None:
        simulation.park(Waiting())

    simulation.spawn(waits, "waits")
    simulation.spawn(spins, "spins")
    with pytest.raises(Interrupt):
        simulation.run()

    assert simulation.close() == []
