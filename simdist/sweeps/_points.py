"""The moments of a run at which a crash could strike, and the crashes to try at each.

A run is watched from the bus, before any effect. A point is named as a fault's trigger names it: the rank, what it is
about to do, and the how-manieth of its kind that is in the rank's first life. So a crash at it is an ordinary fault,
and a failing one replays from a scenario file.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simdist.c10d import OperationCalled
from simdist.faults import Crash, Fault, HostCrash
from simdist.files import StorageCalled, present_disk
from simdist.frames import user_frame
from simdist.kernel import PASS, Bus, Verdict
from simdist.process import PointReached, SimProcess, StepReached
from simdist.storage import Disk, Image

__all__ = ["STRIKES", "Case", "Point", "Strike", "Watcher", "cases_of"]

Strike = Literal["rank", "host", "all"]
STRIKES: tuple[Strike, ...] = ("rank", "host", "all")
DOWN_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """A rank is about to do something, for the `nth` time in its life: `kind` and `name` say what."""

    number: int
    rank: int
    kind: Literal["storage", "operation", "step", "point"]
    name: str
    nth: int
    path: str  # on the disk, with the new name of a rename
    where: str  # the user's line, "save.py:31"
    step: int | None  # that the rank is in, if it names its steps
    last: str = ""  # what was last done to the disk, by any rank, in words
    last_where: str = ""  # and where
    left: tuple[str, ...] = ()  # what the disk may hold if all hosts lose power, as digests, the most suspicious first

    @property
    def call(self) -> str:
        """What the rank is about to do, in words."""
        if self.kind == "step":
            return f"step {self.name}"
        if self.kind == "point":
            return f"point {self.name!r}"
        return f"{self.name} of {self.path or 'the disk'}" if self.kind == "storage" else self.name

    @property
    def trigger(self) -> dict[str, Any]:
        """The fields of a fault that strikes there."""
        if self.kind == "step":
            return {"at_step": int(self.name)}
        if self.kind == "point":
            return {"at_point": self.name, "nth": self.nth}
        return {"op": "storage", "nth": self.nth} if self.kind == "storage" else {"nth": self.nth}


@dataclass(frozen=True, slots=True)
class Case:
    """A crash to try: who dies, on which side of the point, and which outcome the disk takes (None: there is one)."""

    point: Point
    strike: Strike
    when: Literal["before", "during", "after"] = "before"
    outcome: int | None = None

    @property
    def fault(self) -> Fault:
        """The fault that does it."""
        fields: dict[str, Any] = {"rank": self.point.rank, **self.point.trigger, "when": self.when}
        if self.strike == "rank":
            return Crash(**fields)
        every = self.strike == "all"
        return HostCrash(**fields, all_hosts=every, down_ns=DOWN_NS, outcome=self.outcome or 0)

    @property
    def where(self) -> str:
        """The line that it is told with: of a loss of power, that which came last to the disk."""
        point = self.point
        at_point = self.strike == "rank" or self.when == "after" or not point.last_where
        return point.where if at_point else point.last_where

    @property
    def words(self) -> str:
        """Who dies when."""
        point = self.point
        who = {"rank": f"rank {point.rank} died", "host": f"the host of rank {point.rank} lost power"}
        said = who.get(self.strike, "all hosts lost power")
        if self.strike != "rank" and self.when != "after" and point.last:
            said += f" after {point.last}{_in(point.last_where)} and"
        return f"{said} {self.when} {point.call}{_in(point.where)}"


def _in(where: str) -> str:
    return f" ({where})" if where else ""


class Watcher:
    """Notes the points of one run. An observer of worlds: it judges everything, and lets everything pass."""

    def __init__(self, outcomes: int) -> None:
        self.points: list[Point] = []
        self._outcomes = outcomes
        self._counts: dict[tuple[int, str], int] = {}
        self._steps: dict[int, int] = {}
        self._last = ("", "")
        self._left: tuple[int, tuple[str, ...]] = (-1, ())

    def world_begins(self, bus: Bus) -> None:
        """Look at all that is announced there."""
        bus.intercept(StorageCalled, self._on_storage)
        bus.intercept(OperationCalled, lambda event: self._note(event.process, "operation", event.operation))
        bus.intercept(StepReached, self._on_step)
        bus.intercept(PointReached, lambda event: self._note(event.process, "point", event.name))

    def _on_storage(self, event: StorageCalled) -> Verdict:
        return self._note(
            event.process, "storage", event.effect, f"{event.path} to {event.to}" if event.to else event.path
        )

    def _on_step(self, event: StepReached) -> Verdict:
        self._steps[event.process.rank] = event.step
        return self._note(event.process, "step", str(event.step))

    def _note(self, process: SimProcess, kind: Any, name: str, path: str = "") -> Verdict:
        if process.life:
            return PASS
        rank = process.rank
        counted = kind if kind in ("storage", "operation") else f"{kind} {name}"
        nth = self._counts[rank, counted] = self._counts.get((rank, counted), 0) + 1
        frame = user_frame(sys._getframe(1))
        where = "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        step = self._steps.get(rank)
        point = Point(len(self.points), rank, kind, name, nth, path, where, step, *self._last, self._look())
        self.points.append(point)
        if kind == "storage":
            self._last = point.call, where
        return PASS

    def _look(self) -> tuple[str, ...]:
        mounted = present_disk()
        if mounted is None:
            return ()
        if self._left[0] != mounted.changes:
            self._left = mounted.changes, tuple(_digests(mounted.disk, self._outcomes))
        return self._left[1]


def _digests(disk: Disk, most: int) -> Iterator[str]:
    known: dict[Any, str] = {}
    for image in itertools.islice(disk.outcomes(), most):
        yield _digest(disk, image, known)


def _digest(disk: Disk, image: Image, known: dict[Any, str]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for path, state in image.nodes:
        if state not in known:
            known[state] = hashlib.blake2b(disk.content(state) or b"", digest_size=16).hexdigest()
        whole.update(f"{path}\0{disk.inode_of(state).kind}\0{known[state]}\0".encode())
    return whole.hexdigest()


def cases_of(points: Sequence[Point], strikes: Sequence[Strike], hosts: int, outcomes: int) -> tuple[list[Case], int]:
    """The crashes to try, and how many others can't differ from one of them.

    When all hosts are down nothing is left but the disk: two crashes in the same step that leave it the same are one.
    Of a world with one host its crash is that of all.
    """
    cases: list[Case] = []
    merged = 0
    seen: set[tuple[int, str]] = set()
    reached = -1  # the last step that any rank has begun, as far as they are named
    for point in points:
        reached = max(reached, -1 if point.step is None else point.step)
        if "rank" in strikes:
            cases.append(Case(point, "rank"))
            if point.kind == "storage" and point.name == "write":
                cases.append(Case(point, "rank", "during"))
        if "host" in strikes and hosts > 1:
            cases.append(Case(point, "host"))
        if "all" in strikes or ("host" in strikes and hosts == 1):
            for outcome, left in enumerate(point.left or ("",)):
                if point.left and (reached, left) in seen:
                    merged += 1
                    continue
                seen.add((reached, left))
                cases.append(Case(point, "all", outcome=outcome))
    # What comes after the last effect has no point of its own.
    last = [point for point in points if point.kind == "storage"][-1:]
    for point in last:
        if "host" in strikes and hosts > 1:
            cases.append(Case(point, "host", "after"))
        if "all" in strikes or ("host" in strikes and hosts == 1):
            cases += [Case(point, "all", "after", outcome) for outcome in range(max(outcomes, 1))]
    return cases, merged
