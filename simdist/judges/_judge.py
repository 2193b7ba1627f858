"""The class of judges, and their interface to a world: its bus, and a place for findings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from simdist.judges._contents import Newest
from simdist.kernel import Bus, Verdict
from simdist.process import SimProcess, prints_on_host
from simdist.result import Event, JudgeFinding

__all__ = ["Ending", "Hearing", "Judge", "Moment", "step_at"]

_Event = TypeVar("_Event")
_MOST = 4  # findings of one judge; later ones mostly follow from the first


@dataclass(slots=True, unsafe_hash=True)  # hot: a frozen dataclass takes five times as long to make
class Moment:
    """A rank's position: its life, virtual time, the number of events so far, its line ("train.py:12 in step")."""

    rank: int
    life: int
    time_ns: int
    events: int
    where: str


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a world: its events, and the final status of each process by life and rank ("returned", ...)."""

    events: Sequence[Event]
    statuses: Sequence[Mapping[int, str]]

    def all_returned(self, life: int) -> bool:
        """True if every rank of a life reached the end of its program."""
        return life < len(self.statuses) and set(self.statuses[life].values()) <= {"returned"}


class Judge(ABC):
    """A rule for any training. Subclass it for your own rule, and pass an instance in `judges=[...]`.

    A judge holds only settings, because it may judge many worlds: its state for one world belongs into objects that
    `begin` makes. It must change nothing in the world; what it prints goes to the host's streams. Its errors are raised
    on the rank where its listener runs.

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
    compares_values: ClassVar[bool] = False  # of tensors; such a judge is left out with `values="shapes"`

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def begin(self, hearing: Hearing) -> None:
        """Listen to the events that the judge needs; called when a world begins, before anything happens in it."""
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
        self.strict = strict  # left-over works and messages are already errors of their ranks
        self.newest = newest  # the last parameters that a judge has read, for the other judges
        self._found: list[tuple[JudgeFinding, int]] = []  # each with the number of events before it
        self._bus = bus
        self._prepare = prepare
        self._is_ours = type(judge).__module__.startswith("simdist.")  # prints nothing
        self._ends: list[Callable[[], None]] = []
        self._at_end: list[Callable[[Ending], None]] = []

    def listen(self, kind: type[_Event], listener: Callable[[_Event], None]) -> None:
        """Call `listener` for every event of type `kind`, from `simdist.judges` or any other on the bus."""
        self._prepare(kind)
        self._ends.append(self._bus.listen(kind, listener if self._is_ours else prints_on_host(listener)))

    def look_before(self, kind: type[_Event], look: Callable[[_Event], Verdict]) -> None:
        """Call `look` before each announced effect of the type `kind`; it returns `PASS`."""
        self._bus.intercept(kind, look if self._is_ours else prints_on_host(look))

    def at_end(self, look: Callable[[Ending], None]) -> None:
        """Call `look` when the world has ended, while its processes are still known."""
        self._at_end.append(look)

    def moment(self, process: SimProcess, where: str = "") -> Moment:
        """Return a rank's current position; `where` is its line of the program."""
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
        """Report a violation of the rule.

        `problem` describes it in one line without rank and line number. `moment` is where it first appeared, on the
        rank to blame (`rank` -1: no particular rank). `subject` is the tensor, key or file, `against` the other line of
        the program, `step` the step number for programs that do not count steps (`simdist.step`).
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
        """Run the final checks, and return all findings, with the program's own step numbers."""
        for look in self._at_end:
            look(ending)
        return [_with_step(finding, ending.events, position) for finding, position in self._found]

    def close(self) -> None:
        """Stop listening."""
        for end in self._ends:
            end()
        self._ends.clear()
        self._at_end.clear()


def _with_step(finding: JudgeFinding, events: Sequence[Event], position: int) -> JudgeFinding:
    """Return the finding with the step that its rank had begun, if the program counts steps."""
    step = step_at(events, finding.rank, position)
    return finding if step is None else replace(finding, step=step)


def step_at(events: Sequence[Event], rank: int, position: int) -> int | None:
    """Return the step that a rank had begun after `position` events; None if it counts no steps."""
    for index in range(min(position, len(events)) - 1, -1, -1):
        event = events[index]
        if event.rank == rank and event.kind == "step":
            return int(str(event.data["step"]))
        if event.kind == "restart":
            return None
    return None
