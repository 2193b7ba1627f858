from __future__ import annotations

import _thread
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from time import thread_time

import pytest

from simdist.errors import LivelockError, StallError
from simdist.kernel import Simulation, _watchdog
from simdist.kernel._watchdog import processor_seconds
from tests.kernel.fakes import Script, Waiting


@contextmanager
def taken_lock() -> Iterator[_thread.LockType]:
    """A real lock that is not released before the end of the block."""
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
    assert str(caught.value).endswith(
        "\na rank that needs longer gets it with a larger stall_s (of simdist launch --stall-s), in real seconds; "
        "it was 0.2"
    )
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
    assert caught.value.computes
    assert "without giving the baton back; it computes all the time, or loops for ever, here:\n" in str(caught.value)
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


class Clocks:
    """Real time, and the processor time of the task's thread, as a watchdog reads them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.used_s = 0.0
        monkeypatch.setattr(_watchdog, "_real_seconds", lambda: self.now_s)
        monkeypatch.setattr(_watchdog, "processor_seconds", lambda task: self.used_s)

    def looks_until_the_stall(self, simulation: Simulation, share: Callable[[float], float]) -> StallError:
        """Look every second at a task that uses this share of a processor."""
        watchdog = simulation._watchdog
        watchdog._restart(simulation, 0.0)
        while True:
            self.now_s += 1
            self.used_s += share(self.now_s)
            try:
                watchdog._require_life(simulation)
            except StallError as error:
                return error


@pytest.mark.parametrize(
    ("share", "ends_s", "computes"),
    [
        (lambda now_s: 0, 31, False),
        (lambda now_s: 0.001, 31, False),
        (lambda now_s: 0.05, 301, True),
        (lambda now_s: 1, 301, True),
        (lambda now_s: now_s < 100, 130, False),
        (lambda now_s: now_s % 20 == 0, 301, True),
    ],
    ids=["blocks", "hardly", "on a busy machine", "computes", "computes, then blocks", "now and then"],
)
def test_who_computes_may_for_ten_times_as_long_as_who_blocks(
    monkeypatch: pytest.MonkeyPatch, share: Callable[[float], float], ends_s: float, computes: bool
) -> None:
    simulation = Simulation(stall_s=30)
    simulation.current = simulation.spawn(lambda: None, "task")
    clocks = Clocks(monkeypatch)

    error = clocks.looks_until_the_stall(simulation, share)

    assert (error.seconds, error.computes) == (ends_s, computes)


def test_a_task_that_only_computes_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watchdog, "_COMPUTING", 1_000)  # the machine may be busy
    script = Script(Simulation(stall_s=0.1))

    def computes() -> None:
        begin_s = thread_time()
        while thread_time() - begin_s < 0.2:
            pass
        script.note("done")

    script.task("computes", computes)

    assert script.run() == [(0, "done")]


def swallow_in_one_loop(effect: Callable[[], None]) -> None:
    while True:
        try:  # noqa: SIM105  # as programs do
            effect()
        except BaseException:
            pass


def swallow_in_two_loops(effect: Callable[[], None]) -> None:
    while True:
        try:
            while True:
                try:
                    effect()
                except BaseException:
                    effect()
                finally:
                    pass
        except BaseException:
            continue


def swallow_in_a_helper(effect: Callable[[], None]) -> None:
    def once() -> bool:
        try:
            effect()
        except BaseException:
            return False
        return True

    while not once() or once():
        pass


def swallow_in_context_managers(effect: Callable[[], None]) -> None:
    while True:
        try:
            with suppress(BaseException):
                while True:
                    with suppress(BaseException): effect()  # noqa: E701  # fmt: skip  # no other line between
        except BaseException:
            pass


SWALLOWING = [swallow_in_one_loop, swallow_in_two_loops, swallow_in_a_helper]
if sys.version_info >= (3, 12):  # under Python 3.11 it depends on where the exceptions strike
    SWALLOWING.append(swallow_in_context_managers)


@pytest.mark.usefixtures("insistent")
@pytest.mark.parametrize("swallow", SWALLOWING)
def test_tasks_that_swallow_every_exception_are_ended_after_the_verdict(swallow: Callable[..., None]) -> None:
    simulation = Simulation(idle_turns=1_000)
    for index in range(3):
        simulation.spawn(partial(swallow, partial(simulation.sleep, 1)), f"task {index}")
    with pytest.raises(LivelockError):
        simulation.run()

    assert simulation.close() == []
    assert [task.error for task in simulation.tasks] == [None] * 3


@pytest.mark.usefixtures("insistent")
@pytest.mark.parametrize("swallow", SWALLOWING)
def test_a_task_that_computes_and_swallows_every_exception_is_ended(swallow: Callable[..., None]) -> None:
    simulation = Simulation(stall_s=0.005)  # ten times longer for a task that computes
    simulation.spawn(lambda: swallow(lambda: None), "spins")
    with pytest.raises(StallError):
        simulation.run()

    assert simulation.close() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the clocks of threads are Linux's")
def test_a_task_s_processor_time_is_its_thread_s_none_when_that_is_gone() -> None:
    simulation = Simulation()
    times: list[float] = []
    task = simulation.spawn(lambda: times.extend((thread_time(), processor_seconds(task), thread_time())), "task")
    before = processor_seconds(task)

    simulation.run()
    task.native_ident = 2**23  # more than any id of the system
    gone = processor_seconds(task)

    assert 0 < times[0] <= times[1] <= times[2]
    assert (before, gone) == (0, 0)


def test_progress_reports_time_and_events_while_the_world_runs() -> None:
    reported: list[tuple[int, int]] = []
    heard = threading.Event()

    def progress(now_ns: int, events: int) -> None:
        reported.append((now_ns, events))
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
    assert reported[-1] == (42, 1)
    assert simulation.tasks[0].error is None


class Interrupt(KeyboardInterrupt):
    """Raised like Ctrl-C in the host's thread."""


def interrupts(now_ns: int, events: int) -> None:
    raise Interrupt


def sleeps(simulation: Simulation) -> None:
    while True:
        simulation.sleep(1)


def wakes(simulation: Simulation) -> None:
    """Never leave the instant."""
    while True:
        for task in simulation.tasks:
            simulation.wake(task)
        simulation.park(Waiting())


def waits(simulation: Simulation) -> None:
    simulation.park(Waiting())


def spins(simulation: Simulation) -> None:
    while True:
        pass


@pytest.mark.usefixtures("insistent")
@pytest.mark.parametrize(
    "bodies", [[sleeps, sleeps, sleeps], [wakes, wakes], [waits, spins]], ids=["sleep", "wake", "spin"]
)
def test_an_interrupt_ends_a_world_and_leaves_no_thread(bodies: list[Callable[[Simulation], None]]) -> None:
    simulation = Simulation(progress=interrupts)
    for index, body in enumerate(bodies):
        simulation.spawn(partial(body, simulation), f"task {index}")
    with pytest.raises(Interrupt):
        simulation.run()

    assert simulation.close() == []


@pytest.mark.real
def test_a_task_whose_program_computes_is_not_blocked() -> None:
    script = Script(Simulation(stall_s=0.5))
    loop = "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: pass"

    def waits_for_a_program() -> None:
        subprocess.run(["sh", "-c", f"'{sys.executable}' -c '{loop}'; true"], check=True)
        script.note("done")

    script.task("compiles", waits_for_a_program)
    script.simulation.run()
    script.simulation.close()

    assert [words[-1] for words in script.log] == ["done"]


@pytest.mark.real
def test_a_task_whose_program_sleeps_is_blocked() -> None:
    script = Script(Simulation(stall_s=0.5))

    script.task("waits", lambda: subprocess.run(["sleep", "3"], check=True))
    with pytest.raises(StallError, match="it blocks on something outside"):
        script.simulation.run()
    script.simulation.close()
