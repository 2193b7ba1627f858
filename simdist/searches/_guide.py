"""Plans guided by earlier ones: plans that reached something new are kept, and changed a little.

A run reaches a set of triples. For a strike: the kind of the fault, the operation that the struck rank was in or had
called last, and the phase. After a strike: the operations that ranks called, the errors that operations ended with, the
lines of the program that ran, and those at which ranks failed.

Invariant: a plan depends on its number and on the generations before its own, which end before its own begins. So the
search finds the same with any number of workers. In the first generation all plans are drawn from scratch, later every
other one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from simdist.faults import KINDS, Fault, RankFault, Surroundings, When, problems_of
from simdist.programs import Attempt
from simdist.result import RunResult
from simdist.searches._attempts import Facts, trigger
from simdist.searches._swarm import DEADLY, FAMILIES, Drawn, fitting_fault, leaves_one, plan_of_faults

__all__ = ["GENERATION", "Guide", "Reached", "reached_by"]

GENERATION = 64
_MOST = 4  # faults of a plan
_AFTERWARDS = "called afterwards"
_PASSED = "passed afterwards"
_TURNS = 12  # attempts to draw a change that fits
_SIDES: tuple[When, ...] = ("before", "during", "after")


class Reached(NamedTuple):
    """Something that a run reached: an operation or a line, a kind of fault, and the phase."""

    where: str
    fault: str
    phase: str


def reached_by(result: RunResult, passed: Iterable[tuple[str, str]] = ()) -> frozenset[Reached]:
    """Return what a run reached; it has `passed` these lines after faults of these kinds."""
    found = {Reached(line, fault, _PASSED) for line, fault in passed}
    inside: dict[int, str] = {}  # by rank, the running operation
    last: dict[int, str] = {}
    struck, life = "", 0  # the kind of the fault that struck last
    for event in result.events:
        data = event.data
        if event.kind == "issue":
            inside[event.rank] = last[event.rank] = str(data["op"])
            if struck:
                found.add(Reached(str(data["op"]), struck, _AFTERWARDS))
        elif event.kind == "complete":
            for rank in [event.rank] if event.rank >= 0 else list(inside):
                inside.pop(rank, None)
        elif event.kind == "error":
            inside.pop(event.rank, None)
            found.add(Reached(str(data["op"]), struck, f"ended with {data['error']}"))
        elif event.kind == "restart":
            life += 1
            inside.clear()
            last.clear()
        elif event.kind == "fault":
            struck = str(data["fault"])
            under_way = inside.get(event.rank, "")
            phase = f"{'inside' if under_way else 'after'} in life {min(life, 2)}"
            found.add(Reached(under_way or last.get(event.rank, ""), struck, phase))
    found |= {Reached(rank.where, struck, rank.status) for rank in result.ranks if struck and not rank.ok}
    return frozenset(found)


@dataclass(slots=True)
class Guide:
    """Draws the plans of a search; call `end_generation` when `learn` was called for all plans that were drawn."""

    seed: int
    facts: Facts
    world: Surroundings
    budget: int
    families: Sequence[str]
    spare: Sequence[Sequence[int]] = ()  # groups of ranks, of each of which one is left alone
    reached: set[Reached] = field(default_factory=set)
    _called: list[str] = field(default_factory=list)  # operations that ranks called after a strike
    _kept: list[Drawn] = field(default_factory=list)  # plans of earlier generations that reached something new
    _new: list[Drawn] = field(default_factory=list)  # of this one
    _drawn: dict[int, Drawn] = field(default_factory=dict)  # by number, those whose runs are not over

    def plan(self, number: int) -> Attempt:
        """Return the plan with this number."""
        source = random.Random(f"change {self.seed} {number}")
        if number % 2 and self._kept:
            drawn = self._changed(source, source.choice(self._kept))
        else:
            facts, world = self.facts, self.world
            about: dict[str, Any] = {"budget": self.budget, "families": self.families, "spare": self.spare}
            drawn = plan_of_faults(number, self.seed, facts, world, **about)
        self._drawn[number] = drawn
        return drawn.attempt

    def learn(self, number: int, reached: frozenset[Reached]) -> None:
        """Note what the run of a plan reached. Called in the order of the plans' numbers."""
        drawn = self._drawn.pop(number)
        if drawn.attempt.faults and not reached <= self.reached:
            self._new.append(drawn)
        self.reached |= reached

    def end_generation(self) -> None:
        """Let later plans be changes of those that this generation kept."""
        self._kept += self._new
        self._new = []
        self._called = sorted({each.where for each in self.reached if each.phase == _AFTERWARDS})

    def _changed(self, source: random.Random, kept: Drawn) -> Drawn:
        """Return a plan a little different from one that was kept; its faults still fit the world."""
        for _ in range(_TURNS):
            faults = list(kept.attempt.faults)
            way = source.choice((self._moved, self._moved, self._redrawn, self._more, self._fewer, self._with_others))
            changed = way(source, faults, kept.victims)
            if changed is not None and changed != faults and self._fits(changed):
                return replace(kept, attempt=replace(kept.attempt, faults=tuple(changed)))
        policy = source.choice(("fifo", f"random@{source.randrange(2**31)}", f"pct:3@{source.randrange(2**31)}"))
        return replace(kept, attempt=replace(kept.attempt, policy=policy))

    def _fits(self, faults: Sequence[Fault]) -> bool:
        deadly = sum(fault.kind in DEADLY for fault in faults)
        world = self.world
        if deadly > max(1, world.max_restarts or 0) or not leaves_one(faults, self.facts, self.spare):
            return False
        return not problems_of(
            faults,
            self.facts.world_size,
            max_restarts=world.max_restarts,
            has_disk=world.has_disk,
            has_local_disks=world.has_local_disks,
            has_devices=world.has_devices,
            moves_payloads=world.moves_payloads,
        )

    # -- changes -------------------------------------------------------------------------------------------------

    def _moved(self, source: random.Random, faults: list[Fault], victims: Sequence[int]) -> list[Fault] | None:
        """Let one fault strike at another moment, on another side of it, or in another life."""
        place = source.randrange(len(faults))
        fault = faults[place]
        changed: Fault
        if isinstance(fault, RankFault):
            if fault.nth is not None and source.random() < 0.5:
                changed = replace(fault, nth=max(1, fault.nth + source.choice((-2, -1, 1, 2))))
            elif fault.at_ns is None and source.random() < 0.5:
                changed = replace(fault, when=source.choice(_SIDES))
            elif self.world.max_restarts and source.random() < 0.5:
                changed = replace(fault, life=source.randint(0, self.world.max_restarts))
            else:
                again: dict[str, Any] = dict.fromkeys(("at_ns", "at_step", "at_point", "nth", "op"))
                changed = replace(fault, **(again | self._moment(source, fault.rank)))
        else:
            factor = source.choice((0.25, 0.5, 2.0, 4.0))
            times: dict[str, Any] = {name: getattr(fault, name, None) for name in ("at_ns", "start_ns", "until_ns")}
            moved: dict[str, Any] = {name: int(at * factor) for name, at in times.items() if at is not None}
            changed = replace(fault, **moved)
        return [*faults[:place], changed, *faults[place + 1 :]]

    def _moment(self, source: random.Random, rank: int) -> dict[str, Any]:
        """Return the trigger of a fault: at something that the rank did without faults, or that ranks did after one."""
        if not self._called or source.random() < 0.5:
            return trigger(source, self.facts.moments[rank])
        found: dict[str, Any] = {"op": source.choice(self._called), "nth": source.randint(1, 2)}
        return found | ({"life": source.randint(0, self.world.max_restarts)} if self.world.max_restarts else {})

    def _redrawn(self, source: random.Random, faults: list[Fault], victims: Sequence[int]) -> list[Fault] | None:
        """Draw one fault anew, of the same family, with another victim."""
        place = source.randrange(len(faults))
        family = next((kinds for kinds in FAMILIES.values() if faults[place].kind in kinds), (faults[place].kind,))
        other = fitting_fault(source, KINDS[source.choice(family)], self.facts, victims, self.world)
        return None if other is None else [*faults[:place], other, *faults[place + 1 :]]

    def _more(self, source: random.Random, faults: list[Fault], victims: Sequence[int]) -> list[Fault] | None:
        """Add one fault."""
        kind = source.choice(FAMILIES[source.choice(self.families)])
        other = fitting_fault(source, KINDS[kind], self.facts, victims, self.world)
        return None if other is None or len(faults) >= _MOST else [*faults, other]

    def _fewer(self, source: random.Random, faults: list[Fault], victims: Sequence[int]) -> list[Fault] | None:
        """Leave out one fault."""
        place = source.randrange(len(faults))
        return [*faults[:place], *faults[place + 1 :]] if len(faults) > 1 else None

    def _with_others(self, source: random.Random, faults: list[Fault], victims: Sequence[int]) -> list[Fault] | None:
        """Return half of the faults, and half of those of another kept plan that strikes the same ranks."""
        others = [kept.attempt.faults for kept in self._kept if set(kept.victims) <= set(victims)]
        mixed = [*faults, *source.choice(others)] if others else faults
        return [fault for fault in dict.fromkeys(mixed) if source.random() < 0.5][:_MOST] or None
