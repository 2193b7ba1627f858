"""What a judge is, and what it is given: one world, its bus, and a place to report what it found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from simdist.judges._contents import Newest
from simdist.kernel import Bus, Verdict
from simdist.process import SimProcess
from simdist.result import Event, JudgeFinding

__all__ = ["Ending", "Hearing", "Judge", "Moment", "step_at"]

_Event = TypeVar("_Event")
_MOST = 4  # findings of one judge: what follows from the first is no news


@dataclass(slots=True, unsafe_hash=True)  # hot: one that is frozen takes five times as long to make
class Moment:
    """Where a rank was: its life, virtual time, how many events there were, its line ("train.py:12 in step")."""

    rank: int
    life: int
    time_ns: int
    events: int
    where: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a world: its events, and by life and rank how each process ended ("returned", ..., "running")."""

    events: Sequence[Event]
    statuses: Sequence[Mapping[int, str]]

    def all_returned(self, life: int) -> bool:
        """True if every rank of that life came to the end of its program."""
        return life < len(self.statuses) and set(self.statuses[life].values()) <= {"returned"}


class Judge(ABC):
    """What must hold of any training. Subclass it for a rule of your own, and pass an instance in `judges=[...]`.

    A judge holds settings only, for it may judge many worlds: what it remembers of one belongs to what `begin` makes.
    It must change nothing in the world. What it raises is raised on the rank where it looked.

    Example:
        >>> class SmallSteps(Judge):
        ...     name = "small-steps"
        ...
        ...     def begin(self, hearing):
        ...         def look(event):
        ...             if event.number >= 100:
        ...                 hearing.find("more than 100 steps", hearing.moment(event.process, event.where))
        ...
        ...         hearing.listen(OptimizerStepped, look)
    """

    name: ClassVar[str]
    compares_values: ClassVar[bool] = False  # of tensors: then it makes no sense with `values="shapes"`

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def begin(self, hearing: Hearing) -> None:
        """A world begins: listen to what the judge needs. Nothing has happened in the world yet."""
        ...


class Hearing:
    """One judge in one world."""

    def __init__(
        self,
        judge: Judge,
        bus: Bus,
        world_size: int,
        strict: bool,
        prepare: Callable[[type], None],
        newest: Newest,
    ) -> None:
        self.judge = judge
        self.world_size = world_size
        self.strict = strict  # then works and messages that are left over are errors of their ranks already
        self.newest = newest  # what one judge has seen of parameters, and others need not look at again
        self._found: list[tuple[JudgeFinding, int]] = []  # each with how many events there were
        self._bus = bus
        self._prepare = prepare
        self._ends: list[Callable[[], None]] = []
        self._at_end: list[Callable[[Ending], None]] = []

    def listen(self, kind: type[_Event], listener: Callable[[_Event], None]) -> None:
        """Call `listener` for every event of the type `kind`, of `simdist.judges` or reported on the bus."""
        self._prepare(kind)
        self._ends.append(self._bus.listen(kind, listener))

    def look_before(self, kind: type[_Event], look: Callable[[_Event], Verdict]) -> None:
        """Call `look` before each announced effect of the type `kind`; it returns `PASS`."""
        self._bus.intercept(kind, look)

    def at_end(self, look: Callable[[Ending], None]) -> None:
        """Call `look` when the world has ended, while its processes are still known."""
        self._at_end.append(look)

    def moment(self, process: SimProcess, where: str = "") -> Moment:
        """Where a rank is now; `where` is its line of the program."""
        simulation = process.simulation
        return Moment(process.rank, process.life, simulation.now_ns, len(simulation.events.records), where)

    def find(
        self,
        problem: str,
        moment: Moment,
        *,
        subject: str = "",
        step: int | None = None,
        against: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        """Report that something does not hold.

        `problem` says what, in one line without rank and line; `moment` is when and where it first did not hold, on the
        rank to blame (`rank` -1: none in particular). `subject` is the tensor, key or file, `against` the other line of
        the program, `step` what counts steps where the program does not (`simdist.step`).
        """
        if len(self._found) >= _MOST:
            return
        finding = JudgeFinding(
            judge=self.judge.name,
            problem=problem,
            rank=moment.rank,
            life=moment.life,
            time_ns=moment.time_ns,
            step=step,
            subject=subject,
            where=moment.where,
            against=against,
            notes=tuple(notes),
        )
        self._found.append((finding, moment.events))

    def end(self, ending: Ending) -> list[JudgeFinding]:
        """Look for the last time; all that was found, with the steps as the program counts them."""
        for look in self._at_end:
            look(ending)
        return [_with_step(finding, ending.events, position) for finding, position in self._found]

    def close(self) -> None:
        """Hear nothing any more."""
        for end in self._ends:
            end()
        self._ends.clear()
        self._at_end.clear()


def _with_step(finding: JudgeFinding, events: Sequence[Event], position: int) -> JudgeFinding:
    """The finding with the step that its rank had begun, if the program counts steps."""
    step = step_at(events, finding.rank, position)
    return finding if step is None else replace(finding, step=step)


def step_at(events: Sequence[Event], rank: int, position: int) -> int | None:
    """The step that a rank had begun when there were `position` events; None if it counts none."""
    for index in range(min(position, len(events)) - 1, -1, -1):
        event = events[index]
        if event.rank == rank and event.kind == "step":
            return int(str(event.data["step"]))
        if event.kind == "restart":
            return None
    return None
