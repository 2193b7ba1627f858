"""The kernel: virtual time, an event queue, and tasks of which exactly one runs at a time.

It knows nothing of torch, ranks or networks. It uses simpy's `Environment` for the queue and OS threads for
the tasks: each task is a thread parked on its own lock. The parking task steps the queue itself until it knows the
next task, and hands the baton to it directly.

Open `_turns.py` first: it is the loop, on the future in `_timetable.py`; `_simulation.py` is the world as its host runs
and ends it. `_task.py` defines a task, `_policy.py` chooses the next one among equals, `_orders.py` does the same from
a list, for a search. `_deadlock.py` has the report when no task can run, `_bus.py` the interface of everything that
watches or interferes, `_events.py` its log and the digest, `_core.py` why one core and batch scheduling make it twice
as fast.
"""

from simdist.kernel._bus import PASS, Bus, Change, Verdict
from simdist.kernel._core import one_core, why_not_one_core
from simdist.kernel._deadlock import Wait, describe_deadlock
from simdist.kernel._events import EventLog
from simdist.kernel._orders import BEYOND, EVERYTHING, Guide, guided_by
from simdist.kernel._policy import (
    POLICIES,
    FifoPolicy,
    Policy,
    PriorityPolicy,
    RandomPolicy,
    make_policy,
    policy_problem,
)
from simdist.kernel._simulation import Simulation
from simdist.kernel._streams import stream
from simdist.kernel._task import Task, TaskKilled, TaskState
from simdist.kernel._timetable import Timer

__all__ = [
    "BEYOND",
    "EVERYTHING",
    "PASS",
    "POLICIES",
    "Bus",
    "Change",
    "EventLog",
    "FifoPolicy",
    "Guide",
    "Policy",
    "PriorityPolicy",
    "RandomPolicy",
    "Simulation",
    "Task",
    "TaskKilled",
    "TaskState",
    "Timer",
    "Verdict",
    "Wait",
    "describe_deadlock",
    "guided_by",
    "make_policy",
    "one_core",
    "policy_problem",
    "stream",
    "why_not_one_core",
]
