"""One run of a program: what is tried, how long it may be, and what it left."""

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
"""For each expectation that failed its name and what was seen."""

Progress = Callable[[int, int], None]

_STEPS = ("step", "epoch", "iter", "batches", "rounds")  # in the names of what counts them
_TIMES, _EVENTS = 30, 30_000  # events of a run: so many times those of the first, and so many more
_INPUT = (ArgumentError, FaultError, ScenarioError, TopologyError)  # what is wrong with what was given, and no finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run: the policy by which tasks take turns, with the schedule's seed in its name, and faults.

    An empty `policy` is the program's own. The launcher starts the ranks again at least `restarts` times. With
    `fewer_hosts` it goes on with one host less, and nothing is expected that takes all ranks. The seed of the run
    itself stays the same in all attempts, so that generators give the program the same numbers.
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
        """It as JSON-ready data."""
        return {"policy": self.policy, "faults": [repr(fault) for fault in self.faults]}


class EndlessError(SimdistError):
    """A run was ended after so many events. `settled`: long after everything had healed."""

    def __init__(self, events: int, settled: bool) -> None:
        super().__init__(events, settled)
        self.events = events
        self.settled = settled

    def __str__(self) -> str:
        return f"the run has no end: there were more than {self.events} events"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a run may be: so many events, as a program that asks for ever for what never arrives has no end."""

    events: int
    settled_ns: int = 0  # virtual time from which on everything has healed

    @classmethod
    def of(cls, plain: RunResult, longest_ns: int) -> Bounds:
        """Those for runs with faults that last so long, of a program that runs like `plain` without."""
        return cls(_TIMES * len(plain.events) + _EVENTS, plain.virtual_time_ns + longest_ns)

    def watch(self, now_ns: int, events: int) -> None:
        """End the run if it is too long; called during it about ten times in a second, and at its end.

        Raises:
            EndlessError: it is.
        """
        if events > self.events:
            raise EndlessError(self.events, settled=now_ns > self.settled_ns)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that was tried, and the expectations that failed, each with its evidence.

    `error` is why there is no result: the run itself could not be done.
    """

    result: RunResult | None
    problems: Problems = ()
    error: SimdistError | None = None


class Program(Protocol):
    """Something that can be run again and again."""

    @property
    def hosts(self) -> int:
        """How many hosts it runs on."""
        ...

    @property
    def has_disk(self) -> bool:
        """True if there is a disk to lose things from, which is a fresh one in each run."""
        ...

    @property
    def has_local_disks(self) -> bool:
        """True if each host has one of its own."""
        ...

    @property
    def has_devices(self) -> bool:
        """True if its world has virtual devices."""
        ...

    @property
    def moves_payloads(self) -> bool:
        """False if only its course is simulated: `values="shapes"`."""
        ...

    @property
    def forgets(self) -> bool:
        """True if nothing of a rank's life but its files outlives it: no module, and no object."""
        ...

    def fresh(self) -> Program:
        """The same, of which nothing has been run."""
        ...

    def warm(self) -> None:
        """Import what it needs, and run nothing."""

    def ready(self) -> AbstractContextManager[None]:
        """Inside, it can be run."""
        ...

    def run(self, attempt: Attempt, bounds: Bounds | None = None) -> Ran:
        """Run it once, and no longer than the bounds say. The first plain run is what others are held against."""
        ...

    def replay(self, attempt: Attempt) -> str:
        """The command or call that repeats a run."""
        ...

    def smaller(self) -> Iterator[Program]:
        """The same with fewer ranks, or fewer steps."""
        ...


def ran_within(bounds: Bounds | None, run: Callable[[Progress | None], tuple[RunResult, Problems]]) -> Ran:
    """What a run comes to, or the error that ended it.

    Raises:
        SimdistError: what is wrong with what a user gave.
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
    """For each keyword argument that counts steps or the like, smaller counts."""
    for name, value in kwargs.items():
        if isinstance(value, int) and not isinstance(value, bool) and any(word in name.lower() for word in _STEPS):
            yield from ((name, fewer) for fewer in dict.fromkeys((1, value // 2, value - 1)) if 1 <= fewer < value)
