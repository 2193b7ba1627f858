"""A task: an OS thread that runs only while it holds the baton."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simdist.kernel._deadlock import Wait
    from simdist.kernel._simulation import Simulation, Timer

__all__ = ["Task", "TaskKilled", "TaskState"]


class TaskKilled(BaseException):
    """Unwinds the thread of a killed task at teardown. Not an `Exception`: user code must not swallow it."""


class TaskState(Enum):
    """Where a task is in its life."""

    READY = "ready"  # runnable, or not yet started
    RUNNING = "running"  # holds the baton
    PARKED = "parked"  # waits for something
    FROZEN = "frozen"  # killed; its thread stays parked until teardown
    DONE = "done"  # its function has ended


class Task:
    """One simulated thread of control. Made by `Simulation.spawn`.

    `context` belongs to the layer above: the kernel passes it to the switch hook and never looks inside.
    """

    __slots__ = (
        "calm",
        "context",
        "deadline_ns",
        "doomed",
        "error",
        "function",
        "ident",
        "insisted",
        "lock",
        "name",
        "parent",
        "parked_at_ns",
        "paused",
        "simulation",
        "sleep_timer",
        "started",
        "state",
        "waiting",
        "woken_while_paused",
    )

    def __init__(self, simulation: Simulation, name: str, function: Callable[[], None], context: Any) -> None:
        self.simulation = simulation
        self.name = name
        self.function = function
        self.context = context
        self.parent: Task | None = None  # the task of the same context that spawned it
        self.lock = _thread.allocate_lock()  # held while the task is parked
        self.lock.acquire()
        self.state = TaskState.READY
        self.started = False  # its thread exists only from its first turn on
        self.ident = 0  # of its thread, once started
        self.waiting: Wait | None = None  # what it is parked on
        self.parked_at_ns = 0
        self.deadline_ns: int | None = None  # set while it is parked with a deadline
        self.sleep_timer: Timer | None = None
        self.paused = False  # stopped as by SIGSTOP
        self.woken_while_paused = False
        self.doomed = False  # teardown: every effect is refused from now on
        self.insisted = False  # it did not end by itself: see `_unwinding`
        self.calm = False  # nothing more is raised in its thread
        self.error: BaseException | None = None  # what escaped from `function`; the layer above catches its own

    def expire(self) -> None:
        """The deadline of a parked task expired: wake it; `Simulation.park` tells it so."""
        self.deadline_ns = -1
        self.simulation.wake(self)

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.state.value}>"
