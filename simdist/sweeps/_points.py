"""The moments of a run at which a crash could strike, and the crashes to try at each.

A SIGTERM counts as one, and so does a rank that hangs.

An observer on the bus watches a run, before any effect. A point is named as a fault's trigger names it: the rank, the
kind of its next action, and the number of this action among those of its kind in the rank's first life. So a crash at
the point is an ordinary fault, and a failing one replays from a scenario file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypedDict

from simdist.c10d import OperationCalled, StoreRequested
from simdist.faults import Crash, Fault, Hang, HostCrash, Signal
from simdist.files import StorageCalled, present_disks
from simdist.frames import is_ours, user_frame
from simdist.kernel import PASS, Bus, Verdict
from simdist.process import PointReached, SimProcess, StepReached
from simdist.sweeps._images import Found, outcomes_of

__all__ = ["STRIKES", "Case", "Point", "Strike", "TriggerFields", "Watcher", "cases_of"]

Strike = Literal["rank", "host", "all", "swap", "lost", "sigterm", "hang"]
STRIKES: tuple[Strike, ...] = ("rank", "host", "all", "swap", "lost", "sigterm", "hang")
_RANKS: tuple[Strike, ...] = ("rank", "sigterm", "hang")  # strike one rank, and leave its host alone
DOWN_NS = 1_000_000_000
HANG_NS = 7_200_000_000_000  # longer than the time-outs that torch has by default
_STANDARD = tuple(f"{Path(os.__file__).parent}/{name}" for name in (*sys.stdlib_module_names,))
_KEY = 60  # characters of a store's key that are shown


class TriggerFields(TypedDict, total=False):
    """The fields of a fault's trigger."""

    at_step: int
    at_point: str
    op: str
    nth: int


@dataclass(frozen=True, slots=True)
class Point:
    """A rank is before an action, for the `nth` time in its life: `kind` and `name` describe the action."""

    number: int
    rank: int
    kind: Literal["storage", "operation", "request", "step", "point"]
    name: str
    nth: int
    path: str  # on the disk; for a rename, with the new name
    where: str  # the user's line, "save.py:31"
    step: int | None  # that the rank is in, if it names its steps
    reached: int = -1  # the last step that any rank has begun
    last: str = ""  # the last change of the disk, by any rank, in words
    last_where: str = ""  # and its line
    left: tuple[str, ...] = ()  # the states of the disk if all hosts lose power, as digests, the most suspicious first
    life: int = 0
    host: str = ""  # on which the rank is
    changes: int = 0  # how often any disk has changed before, as far as that is seen
    new: bool = True  # something has happened anywhere since this rank passed its last point

    @property
    def blind(self) -> Point:
        """The point in a run in which unseen code changes the disk, so that it is unknown what may be left."""
        return replace(self, left=(), new=True)

    @property
    def call(self) -> str:
        """The rank's next action, in words."""
        if self.kind == "step":
            return f"step {self.name}"
        if self.kind == "point":
            return f"point {self.name!r}"
        if self.kind == "request":
            return f"{self.name} of {self.path!r}" if self.path else self.name
        return f"{self.name} of {self.path or 'the disk'}" if self.kind == "storage" else self.name

    @property
    def trigger(self) -> TriggerFields:
        """The fields of a fault that strikes there."""
        if self.kind == "step":
            return {"at_step": int(self.name)}
        if self.kind == "point":
            return {"at_point": self.name, "nth": self.nth}
        ops = {"storage": "storage", "request": "store"}
        return {"op": ops[self.kind], "nth": self.nth} if self.kind in ops else {"nth": self.nth}


@dataclass(frozen=True, slots=True)
class Case:
    """A crash to try: what is struck, on which side of the point, and the outcome of the disk (None: there is one)."""

    point: Point
    strike: Strike
    when: Literal["before", "during", "after"] = "before"
    outcome: int | None = None
    first: Case | None = None  # the crash from which the program was about to recover

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that cause the crash."""
        return (self.fault,) if self.first is None else (*self.first.faults, self.fault)

    @property
    def loses_hosts(self) -> bool:
        """True if the program has to go on with fewer hosts."""
        return self.strike == "lost" or (self.first is not None and self.first.loses_hosts)

    @property
    def fault(self) -> Fault:
        """The last of these faults, which strikes after everything before it has happened."""
        point = self.point
        fields: dict[str, Any] = {"rank": point.rank, **point.trigger, "when": self.when}
        if point.life:
            fields["life"] = point.life
        if self.strike == "rank":
            return Crash(**fields)
        if self.strike == "sigterm":
            return Signal(**fields, signal="SIGTERM")
        if self.strike == "hang":
            return Hang(**fields, duration_ns=HANG_NS)
        if self.strike == "lost":
            return HostCrash(**fields, outcome=0)
        if self.strike == "swap":
            return HostCrash(**fields, all_hosts=True, down_ns=DOWN_NS, disks="swapped")
        every = self.strike == "all"
        return HostCrash(**fields, all_hosts=every, down_ns=DOWN_NS, outcome=self.outcome or 0)

    @property
    def left(self) -> str | None:
        """The digest of what is left; None if something else may survive, or if it is unknown."""
        if self.strike != "all" or self.when != "before" or self.outcome is None or self.first is not None:
            return None
        return self.point.left[self.outcome] if self.point.left else None

    @property
    def where(self) -> str:
        """The line in its report: for a loss of power, that of the last change of the disk."""
        point = self.point
        at_point = self.strike in _RANKS or self.when == "after" or not point.last_where
        return point.where if at_point else point.last_where

    @property
    def words(self) -> str:
        """The struck rank or host, and the point, in words."""
        point = self.point
        who = {
            "rank": f"rank {point.rank} died",
            "sigterm": f"rank {point.rank} got SIGTERM",
            "hang": f"rank {point.rank} hung for 2 h",
            "host": f"the host of rank {point.rank} lost power",
            "lost": f"the host of rank {point.rank} was lost for good",
            "swap": "all hosts were shut down and came back with each other's disks,",
        }
        said = who.get(self.strike, "all hosts lost power")
        if self.strike not in _RANKS and self.when != "after" and point.last:
            said += f" after {point.last}{_in(point.last_where)} and"
        said = f"{said} {self.when} {point.call}{_in(point.where)}"
        return said if self.first is None else f"{self.first.words}; in the life after that {said}"


def _in(where: str) -> str:
    return f" ({where})" if where else ""


class Watcher:
    """Notes the points of one life of a run. An observer of worlds: it judges all events, and lets them pass.

    With `until` it notes no points after a rank has begun a later step.
    """

    def __init__(self, outcomes: int, *, life: int = 0, until: int | None = None) -> None:
        self.points: list[Point] = []
        self.found: dict[str, Found] = {}  # by digest: possible contents of the disk after a power loss of all hosts
        self._life = life
        self._until = until
        self._outcomes = outcomes
        self._counts: dict[tuple[int, str], int] = {}
        self._steps: dict[int, int] = {}
        self._last = ("", "")
        self._left: tuple[int, tuple[str, ...]] = (-1, ())
        self._silent: tuple[int, int] | None = None  # the rank at the last point, if that leaves nothing

    def world_begins(self, bus: Bus) -> None:
        """Watch everything that is announced in the world."""
        bus.intercept(StorageCalled, self._on_storage)
        bus.intercept(
            StoreRequested,
            lambda event: self._note(event.process, "request", f"store.{event.operation}", _shown(event.key)),
        )
        bus.intercept(OperationCalled, lambda event: self._note(event.process, "operation", event.operation))
        bus.intercept(StepReached, self._on_step)
        bus.intercept(PointReached, lambda event: self._note(event.process, "point", event.name))

    def _on_storage(self, event: StorageCalled) -> Verdict:
        return self._note(
            event.process, "storage", event.effect, f"{event.path} to {event.to}" if event.to else event.path
        )

    def _on_step(self, event: StepReached) -> Verdict:
        if event.process.life == self._life:
            self._steps[event.process.rank] = event.step
        return self._note(event.process, "step", str(event.step))

    def _note(self, process: SimProcess, kind: Any, name: str, path: str = "") -> Verdict:
        rank = process.rank
        reached = max(self._steps.values(), default=-1)
        if process.life != self._life or (self._until is not None and reached > self._until):
            return PASS
        counted = kind if kind in ("storage", "operation", "request") else f"{kind} {name}"
        nth = self._counts[rank, counted] = self._counts.get((rank, counted), 0) + 1
        where = _line(sys._getframe(1))
        step = self._steps.get(rank)
        number, new = len(self.points), self._has_happened(process, kind)
        (text, at), left, changes = self._last, self._look(), max(self._left[0], 0)
        point = Point(
            *(number, rank, kind, name, nth, path, where, step, reached, text, at, left, self._life),
            *(process.host.name, changes, new),
        )
        self.points.append(point)
        if kind == "storage":
            self._last = point.call, where
        return PASS

    def _has_happened(self, process: SimProcess, kind: str) -> bool:
        """True if a rank that dies here could leave something else than if it had died at its last point.

        A step or a point leaves nothing. If no other rank was active since, the two can't be distinguished.
        """
        events = len(process.simulation.events) - (kind == "request")  # which is in the log already
        last, self._silent = self._silent, (process.rank, events) if kind in ("step", "point") else None
        return last != (process.rank, events)

    def _look(self) -> tuple[str, ...]:
        disks = present_disks()
        if disks is None:
            return ()
        if self._left[0] != disks.changes:
            left = [(each.digest(), each) for each in outcomes_of(disks, self._outcomes)]
            self.found.update(left)
            self._left = disks.changes, tuple(digest for digest, _ in left)
        return self._left[1]


def _line(frame: FrameType | None) -> str:
    """Return the line of the user's code; for a thread or a process of a library, the line of the library."""
    found = user_frame(frame)
    while found is None and frame is not None:
        file = frame.f_code.co_filename
        if not is_ours(frame) and not file.startswith((*_STANDARD, "<")):
            found = frame
        frame = frame.f_back
    return "" if found is None else f"{Path(found.f_code.co_filename).name}:{found.f_lineno}"


def _shown(key: str) -> str:
    return key if len(key) <= _KEY else f"{key[:_KEY]}..."


def cases_of(
    points: Sequence[Point],
    strikes: Sequence[Strike],
    hosts: int,
    outcomes: int,
    first: Case | None = None,
) -> tuple[list[Case], int]:
    """Return the crashes to try, and how many others can't differ from one of them.

    When all hosts are down only the disk is left: two crashes in the same step that leave the same disk are one. So are
    two of a rank between which nothing has happened, but not two SIGTERMs: a handler that saves sees what the program
    has computed in between. Where it is unknown what may be left, all `outcomes` are tried. In a world with one host,
    its crash is that of all. `first` is the crash before.
    """
    cases: list[Case] = []
    merged = 0
    seen: set[tuple[int, str]] = set()
    launcher = next((point.host for point in points if point.rank == 0), "")  # without that host no rank goes on
    for point in points:
        ones: list[Strike] = [strike for strike in STRIKES[:2] if strike in strikes and (strike == "rank" or hosts > 1)]
        if point.new:
            cases += [Case(point, strike, first=first) for strike in ones]
        else:
            merged += len(ones)
        if "hang" in strikes:
            if point.new:
                cases.append(Case(point, "hang", first=first))
            else:
                merged += 1
        if "rank" in strikes and point.kind == "storage" and point.name == "write":
            cases.append(Case(point, "rank", "during", first=first))
        if "sigterm" in strikes:
            cases.append(Case(point, "sigterm", first=first))
        if "lost" in strikes and point.new and point.host != launcher:
            cases.append(Case(point, "lost", first=first))
        if "swap" in strikes and hosts > 1:
            here = (point.reached, f"swapped {point.changes if point.left else -point.number}")
            if here in seen:
                merged += 1
            else:
                seen.add(here)
                cases.append(Case(point, "swap", first=first))
        if "all" in strikes or ("host" in strikes and hosts == 1):
            for outcome, left in enumerate(point.left or ("",) * max(outcomes, 1)):
                if point.left and (point.reached, left) in seen:
                    merged += 1
                    continue
                seen.add((point.reached, left))
                cases.append(Case(point, "all", outcome=outcome, first=first))
    # The time after the last effect has no point of its own.
    last = [point for point in points if point.kind == "storage"][-1:]
    for point in last:
        if "host" in strikes and hosts > 1:
            cases.append(Case(point, "host", "after", first=first))
        if "all" in strikes or ("host" in strikes and hosts == 1):
            cases += [Case(point, "all", "after", outcome, first) for outcome in range(max(outcomes, 1))]
    return cases, merged
