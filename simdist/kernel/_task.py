"""A task: an OS thread that runs only while it holds the baton."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simdist.kernel._deadlock import Wait
    from simdist.kernel._simulation import Simulation
    from simdist.kernel._timetable import Timer

__all__ = ["Task", "TaskKilled", "TaskState", "methods_of_lock"]

# The type's methods when this is imported: the layer above may replace the locks of a program by simulated ones,
# but never the locks on which tasks are parked.
_lock_type: Any = _thread.LockType
_acquire, _release, _locked = _lock_type.acquire, _lock_type.release, _lock_type.locked


def methods_of_lock(lock: Any) -> tuple[Callable[..., bool], Callable[[], None], Callable[[], bool]]:
    """`acquire`, `release` and `locked` of a real lock, even if its type was replaced."""
    return _acquire.__get__(lock), _release.__get__(lock), _locked.__get__(lock)


class TaskKilled(BaseException):
    """Unwinds the thread of a killed task at teardown. Not an `Exception`: user code must not swallow it."""


class TaskState(Enum):
    """The state of a task's life."""

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
        "acquire",
        "at_end",
        "calm",
        "context",
        "daemon",
        "deadline_ns",
        "doomed",
        "error",
        "function",
        "ident",
        "insisted",
        "name",
        "native_ident",
        "parent",
        "parked_at_ns",
        "paused",
        "release",
        "simulation",
        "sleep_timer",
        "started",
        "state",
        "waiting",
        "woken_while_paused",
    )

    def __init__(self, simulation: Simulation, name: str, function: Callable[[], None], context: object) -> None:
        self.simulation = simulation
        self.name = name
        self.function = function
        self.context = context
        self.parent: Task | None = None  # the task of the same context that spawned it
        # The methods of a lock that is held while the task is parked.
        self.acquire, self.release, _ = methods_of_lock(_thread.allocate_lock())
        self.acquire()
        self.state = TaskState.READY
        self.started = False  # its thread exists only from its first turn on
        self.ident = 0  # of its thread, once started; Python's
        self.native_ident = 0  # the system's, once it runs
        self.daemon = False  # no task may rely on what it could do one day
        self.waiting: Wait | None = None  # what it is parked on
        self.parked_at_ns = 0
        self.deadline_ns: int | None = None  # set while it is parked with a deadline
        self.sleep_timer: Timer | None = None
        self.paused = False  # stopped as by SIGSTOP
        self.woken_while_paused = False
        self.doomed = False  # teardown: every effect is refused from now on
        self.insisted = False  # it did not end without insisting: see `_unwinding`
        self.calm = False  # nothing more is raised in its thread
        self.at_end: Callable[[], None] | None = None  # the layer above has its thread call this last
        self.error: BaseException | None = None  # an error out of `function`; the layer above catches its own

    def expire(self) -> None:
        """Wake a parked task whose deadline expired; `Simulation.park` returns False then."""
        self.deadline_ns = -1
        self.simulation.wake(self)

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.state.value}>"
