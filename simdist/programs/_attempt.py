"""One run of a program: its differences, its longest duration, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from simdist.errors import ArgumentError, FaultError, ScenarioError, SimdistError, TopologyError
from simdist.faults import Fault
from simdist.result import RunResult
from simdist.values import Json

__all__ = ["Attempt", "Bounds", "EndlessError", "Problems", "Program", "Progress", "Ran", "fewer_steps", "ran_within"]

Problems = tuple[tuple[str, str], ...]
"""The name of each expectation that failed, and its evidence."""

Progress = Callable[[int, int], None]

_STEPS = ("step", "epoch", "iter", "batches", "rounds")  # in the names of counts
_TIMES, _EVENTS = 30, 30_000  # a run has at most this many times the events of the first, and this many more
_INPUT = (ArgumentError, FaultError, ScenarioError, TopologyError)  # the input is wrong, which is no finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run: the policy for the order of tasks, with the schedule's seed in its name, and faults.

    An empty `policy` is the program's own. The launcher starts the ranks again at least `restarts` times. With
    `fewer_hosts` it continues with one host less, and expectations that need all ranks are dropped. All attempts have
    the same seed for the run, so that generators give the program the same numbers.
    """

    policy: str = "fifo"
    faults: tuple[Fault, ...] = ()
    restarts: int = 0
    fewer_hosts: bool = False

    @property
    def is_plain(self) -> bool:
        """True if the run is like the usual one."""
        return not self.faults and self.policy in ("", "fifo")

    def summary(self) -> dict[str, Json]:
        """Return the attempt as JSON-ready data."""
        return {"policy": self.policy, "faults": [repr(fault) for fault in self.faults]}


class EndlessError(SimdistError):
    """A run was ended after this many events. `settled`: long after the end of all faults."""

    def __init__(self, events: int, settled: bool) -> None:
        super().__init__(events, settled)
        self.events = events
        self.settled = settled

    def __str__(self) -> str:
        return f"the run has no end: there were more than {self.events} events"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The longest duration of a run: a number of events, since a program that retries for ever has no end."""

    events: int
    settled_ns: int = 0  # virtual time from which no fault acts

    @classmethod
    def of(cls, plain: RunResult, longest_ns: int) -> Bounds:
        """Return bounds for runs with faults of this duration, for a program that runs like `plain` without them."""
        return cls(_TIMES * len(plain.events) + _EVENTS, plain.virtual_time_ns + longest_ns)

    def watch(self, now_ns: int, events: int) -> None:
        """End the run if it is too long; called about ten times a second during the run, and at its end.

        Raises:
            EndlessError: the run is too long.
        """
        if events > self.events:
            raise EndlessError(self.events, settled=now_ns > self.settled_ns)


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of an attempt, and the expectations that failed, each with its evidence.

    `error` is the reason for a missing result: the run was impossible.
    """

    result: RunResult | None
    problems: Problems = ()
    error: SimdistError | None = None


class Program(Protocol):
    """A program that can run many times."""

    @property
    def hosts(self) -> int:
        """The number of its hosts."""
        ...

    @property
    def has_disk(self) -> bool:
        """True if there is a disk that can lose data; each run gets a fresh one."""
        ...

    @property
    def has_local_disks(self) -> bool:
        """True if each host has a disk of its own."""
        ...

    @property
    def has_devices(self) -> bool:
        """True if its world has virtual devices."""
        ...

    @property
    def moves_payloads(self) -> bool:
        """False if the world simulates no values: `values="shapes"`."""
        ...

    @property
    def forgets(self) -> bool:
        """True if only files outlive a rank's life: no module, and no object."""
        ...

    def fresh(self) -> Program:
        """Return the same program, without runs so far."""
        ...

    def warm(self) -> None:
        """Import the program's modules, and run nothing."""

    def ready(self) -> AbstractContextManager[None]:
        """The program can run while inside."""
        ...

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        """Run the program once, within the bounds. Later runs are compared with the first plain one."""
        ...

    def replay(self, attempt: Attempt) -> str:
        """Return the command or call that repeats a run."""
        ...

    def smaller(self) -> Iterator[Program]:
        """Yield the same program with fewer ranks, or fewer steps."""
        ...


def ran_within(bounds: Bounds | None, run: Callable[[Progress | None], tuple[RunResult, Problems]]) -> Ran:
    """Return the result of a run, or the error that ended it.

    Raises:
        SimdistError: the user's input is wrong.
    """
    try:
        result, problems = run(None if bounds is None else bounds.watch)
        if bounds is not None:
            bounds.watch(result.virtual_time_ns, len(result.events))
    except _INPUT:
        raise
    except SimdistError as error:
        return Ran(None, error=error)
    return Ran(result, problems)


def fewer_steps(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield smaller counts for each keyword argument that counts steps or the like."""
    for name, value in kwargs.items():
        if isinstance(value, int) and not isinstance(value, bool) and any(word in name.lower() for word in _STEPS):
            yield from ((name, fewer) for fewer in dict.fromkeys((1, value // 2, value - 1)) if 1 <= fewer < value)
