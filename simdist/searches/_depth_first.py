"""Tries every order of turns that matters, once: depth-first search with dynamic partial-order reduction.

A run is a sequence of *steps*: what a task does from one choice to the next. Two steps of different tasks are
*dependent* if they belong to one rank, or touch the same thing and one of them writes it. Orders that differ only in
exchanges of independent steps are equal. After each run, for each step and each earlier one with which it could have
been exchanged, the search later returns there and lets another task go first (Flanagan and Godefroid, "Dynamic
partial-order reduction for model checking software", 2005; it picks this task as in Abdulla et al., "Optimal dynamic
partial order reduction", 2014). *Sleep sets* spare it orders that it has tried (Godefroid, "Partial-Order Methods for
the Verification of Concurrent Systems", 1996).

Invariants:
- All tasks that can run at an instant run before time goes on. So only steps of one instant can be exchanged, and a
  timer's action belongs to the step that set the timer.
- The stack has a node for each step of the last run, with what is left to try there. A run follows the stack up to the
  deepest node with a task left to try, and from there on takes the first task that does not sleep.
- Some effects are not reported in full (files, sockets, faults, restarts, devices). When a run comes to one, all steps
  are dependent from then on, and the search begins anew: then it tries every order.

Doubt: threads of a rank may touch any of its variables, so all their steps are dependent. Objects that ranks share as
threads of one interpreter, where real ones would have copies, count only if the run reports them as shared. Files that
C code opens itself are not seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simdist.kernel import BEYOND, EVERYTHING, Task
from simdist.result import RunResult

__all__ = ["Coverage", "DepthFirst"]

Name = tuple[str, int]
"""A task in all runs: its name, and its index among the tasks of that name."""

_REPORTED = (
    "start",
    "exit",
    "store",
    "sleep",
    "output",
    "step",
    "state",
    "group",
    "issue",
    "complete",
    "result",
    "error",
    "deadlock",
)
_BACKENDS = ("", "gloo")
_LONGEST = 3000  # steps of a run to which the search returns


@dataclass(frozen=True, slots=True)
class Coverage:
    """The progress of a systematic search.

    `exhaustive`: all orders that can differ were tried; otherwise the search hit its bound. `decisions` is the number
    of choices among several tasks in all runs, `repeated` the number of runs that turned out to equal an earlier one.
    `reduced` is False if a run had effects that are not reported in full (files, sockets, faults, restarts, devices),
    so that no order could be left out.
    """

    exhaustive: bool
    decisions: int
    repeated: int
    reduced: bool

    def __str__(self) -> str:
        whole = "every order that can differ was tried" if self.exhaustive else "not every order was tried"
        how = f"{self.repeated} of the runs were repetitions" if self.reduced else "no two orders are known to be equal"
        return f"{whole}: {self.decisions} decisions; {how}"


@dataclass(slots=True)
class _Footprint:
    """The things that a step touched, and whether it wrote them."""

    family: int = -1
    things: dict[Hashable, bool] = field(default_factory=dict)

    def meets(self, other: _Footprint) -> bool:
        """True if the two steps, of different tasks, can't be exchanged."""
        if self.family == other.family or EVERYTHING in self.things or EVERYTHING in other.things:
            return True
        few, many = sorted((self.things, other.things), key=len)
        return any(thing in many and (writes or many[thing]) for thing, writes in few.items())


_UNKNOWN = _Footprint(things={EVERYTHING: True})


@dataclass(slots=True)
class _Node:
    """A choice: the tasks that could run, the one that was taken, those left to try."""

    able: tuple[Name, ...]
    time_ns: int
    sleeping: dict[Name, _Footprint]
    taken: Name
    step: _Footprint
    to_try: dict[Name, None] = field(default_factory=dict)
    tried: dict[Name, _Footprint] = field(default_factory=dict)
    woken: list[Name] = field(default_factory=list)  # tasks that this step woke


class DepthFirst:
    """The search; a `Guide` of the kernel. With `reduced` False it tries every order, also equal ones.

    Call `begin` before each run, and `end` after it, which returns False when there is nothing left to try.
    """

    def __init__(self, *, reduced: bool = True) -> None:
        self.reduced = reduced
        self.cut = False  # a run was too long to return to its last choices
        self.diverged = False  # a run differed from the one before it, up to the same choice
        self.decisions = 0  # choices among several tasks, in all runs
        self.repeated = 0  # runs that turned out to equal an earlier one
        self._stack: list[_Node] = []
        self.begin()

    def begin(self) -> None:
        """Prepare for a run."""
        self._depth = 0
        self._names: dict[Task, Name] = {}
        self._counts: dict[str, int] = {}
        self._beyond = False
        self._asleep: int | None = None  # the node from which on all tasks that could run slept

    @property
    def policy(self) -> str:
        """The name of the policy that repeats the last run; before `end`."""
        found = [node.able.index(node.taken) for node in self._stack if len(node.able) > 1]
        while found and not found[-1]:
            found.pop()
        return f"order:{'.'.join(map(str, found or [0]))}"

    def coverage(self, *, over: bool) -> Coverage:
        """Return how far the search got; `over`: nothing was left to try."""
        return Coverage(over and not self.cut, self.decisions, self.repeated, self.reduced)

    # -- during a run --------------------------------------------------------------------------------------------

    def woke(self, task: Task) -> None:
        """Note that a task became runnable: by the running step, or by a timer after it."""
        if task not in self._names:
            number = self._counts.get(task.name, 0)
            self._counts[task.name] = number + 1
            self._names[task] = task.name, number
        if self._depth:
            self._stack[self._depth - 1].woken.append(self._names[task])

    def touch(self, thing: Hashable, *, writes: bool) -> None:
        """Note that the running step touches something."""
        if thing == BEYOND:
            self._beyond = True
        elif self._depth:
            things = self._stack[self._depth - 1].step.things
            things[thing] = things.get(thing, False) or writes

    def choose(self, tasks: Sequence[Task]) -> int:
        """Return the place of the task whose turn it is."""
        able = tuple(self._names[task] for task in tasks)
        self.decisions += len(able) > 1
        if self._depth >= _LONGEST or self.diverged:
            self.cut = True
            return 0
        if self._depth < len(self._stack):
            node = self._stack[self._depth]
            if node.taken not in able:
                self.diverged = True
                return 0
            place = able.index(node.taken)
        else:
            sleeping = self._sleeping_here()
            place = next((place for place, name in enumerate(able) if name not in sleeping), -1)
            if place < 0:
                place = 0  # tried before: the run goes on, but the search never returns to it
                if self._asleep is None:
                    self._asleep = self._depth
            node = _Node(able, tasks[place].simulation.now_ns, sleeping, able[place], _Footprint())
            node.to_try = {able[place]: None} if self.reduced else dict.fromkeys(able)
            self._stack.append(node)
        node.able = able
        family = _family(tasks[place])
        node.step = _Footprint(family, {EVERYTHING: True} if family < 0 else {})
        node.woken = []
        self._depth += 1
        return place

    def _sleeping_here(self) -> dict[Name, _Footprint]:
        if not self._stack or not self.reduced or self._asleep is not None:
            return {}
        last = self._stack[-1]
        before = {**last.sleeping, **last.tried}
        return {name: step for name, step in before.items() if name != last.taken and not step.meets(last.step)}

    # -- after it ------------------------------------------------------------------------------------------------

    def end(self, result: RunResult | None) -> bool:
        """Evaluate a run (None: it has no result). True if another run is needed."""
        if self.reduced and (self._beyond or (result is not None and not _is_reported(result))):
            self.reduced = False
            self._stack.clear()
            return True
        if result is None:
            self.cut = True  # ended from outside, at no moment of its own
        elif self._depth < len(self._stack):
            self.diverged = True
        del self._stack[self._depth :]
        if self._asleep is not None:
            self.repeated += 1
            del self._stack[self._asleep :]
        if self.reduced:
            self._find_races(self._steps())
        return self._turn_back()

    def _turn_back(self) -> bool:
        while self._stack:
            node = self._stack[-1]
            node.tried[node.taken] = node.step
            left = [name for name in node.to_try if name not in node.tried and name not in node.sleeping]
            if left:
                node.taken = left[0]
                return True
            self._stack.pop()
        return False

    def _steps(self) -> Iterator[tuple[int, Name, _Footprint]]:
        """Yield the steps of the run, with their places, and the steps that ended tasks could have done instead."""
        expected: set[Name] = set()
        for place, node in enumerate(self._stack):
            for name in sorted(expected.difference(node.able)):
                yield place, name, _UNKNOWN
            yield place, node.taken, node.step
            expected = {*node.able, *node.woken} - ({node.taken} - {*node.woken})
        if self._asleep is None:
            for name in sorted(expected):
                yield len(self._stack), name, _UNKNOWN

    def _find_races(self, steps: Iterator[tuple[int, Name, _Footprint]]) -> None:
        """Note at each step which other tasks have to be tried there."""
        before: list[int] = []  # for each step, a bit for each step that precedes it in all equal orders
        last: dict[Name, int] = {}
        waker: dict[Name, int] = {}
        for place, name, step in steps:
            after = 0
            for cause in (last.get(name, -1), waker.get(name, -1)):
                if cause >= 0:
                    after |= before[cause] | 1 << cause
            races = []
            # A task that was ended could have gone on at the instant before.
            time_ns = self._stack[place - 1 if step is _UNKNOWN else place].time_ns
            for earlier in range(place - 1, -1, -1):
                other = self._stack[earlier]
                if other.time_ns != time_ns:
                    break
                if other.taken != name and step.meets(other.step) and not after >> earlier & 1:
                    races.append(earlier)
                    after |= before[earlier] | 1 << earlier
            for earlier in races:
                self._try_at(earlier, place, name, before, after)
            if step is _UNKNOWN:
                continue
            before.append(after)
            last[name] = place
            for each in self._stack[place].woken:
                waker[each] = place

    def _try_at(self, earlier: int, place: int, name: Name, before: list[int], after: int) -> None:
        """At `earlier`, let a task go first by which `name` gets to its step before the task that was taken there."""
        others = [each for each in range(earlier + 1, place) if not before[each] >> earlier & 1]
        among = sum(1 << each for each in others)
        first: dict[Name, bool] = {}
        for each in others:
            first.setdefault(self._stack[each].taken, not before[each] & among)
        first.setdefault(name, not after & among)
        node = self._stack[earlier]
        begin = [each for each, free in first.items() if free]
        if any(each in node.to_try for each in begin):
            return
        node.to_try.update(dict.fromkeys([each for each in begin if each in node.able][:1] or node.able))


def _is_reported(result: RunResult) -> bool:
    """True if the run reported all touches by which its ranks may have affected each other."""
    beside = result.faults or result.restarts or result.programs or result.shared_state
    known = all(name in _BACKENDS for name in (result.backend, *result.backends))
    return not beside and known and all(event.kind in _REPORTED for event in result.events)


def _family(task: Task) -> int:
    """Return the rank of a task, also for its descendants; -1 for a launcher's."""
    process: Any = task.context
    rank: int = process.oldest.rank
    return rank
