"""Decides when a fault of a rank strikes: one state machine for the simulated and the real rank.

It is pure: no clock, no thread, no generator of its own. Its driver reports what happens to the rank (a step begins, a
point is passed, an operation is called, a disk is changed, a store is asked, another fault has struck, an alarm is due)
and gets the faults that strike now.

What holds at any time:

- A trigger has one source: a time, a step, a point, an operation, or, with nothing else, another fault. A step may
  narrow down a point or an operation: they count from the beginning of that step.
- Nothing counts before the other fault that it waits for has struck. Steps are followed all the same, so that an
  operation in a step counts even if that other fault strikes in the middle of it.
- A trigger strikes once, unless it has a period or an `every`. A trigger that has struck for the last time is *spent*.
- A fault on an operation may be unable to strike, because another fault with another `when` did or because an exception
  took the operation's place. It stays due, strikes at the next operation that matches, and draws no second time.
- One number is drawn for each moment at which a trigger with a probability could strike, and none otherwise, so that
  the same calls of a rank give the same strikes, simulated and real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

__all__ = ["Trigger", "Watch", "Watches", "When"]

When = Literal["before", "during", "after"]
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a fault strikes. Times count from the start of the run, or from the strike of the fault that it `waits` for.

    `operations` are the names that match, None for any; they count only if `on_operation`. `nth` is the first operation
    or passing of the point that strikes, `every` how many come until the next; without a point or an operation, `every`
    counts steps. `raises` says that the strike is an exception: nothing can strike after it.
    """

    at_ns: int | None = None
    period_ns: int | None = None
    step: int | None = None
    point: str | None = None
    on_operation: bool = False
    operations: tuple[str, ...] | None = None
    effects: tuple[str, ...] = ()  # on a disk or a store; they count like operations, and there are no others
    nth: int = 1
    every: int | None = None
    when: When = "before"
    probability: float | None = None
    waits: bool = False
    raises: bool = False

    @property
    def counts(self) -> bool:
        """True if operations or passings of a point are its source."""
        return self.on_operation or self.point is not None

    @property
    def is_timed(self) -> bool:
        """True if an alarm is its source."""
        return self.at_ns is not None or (self.waits and self.step is None and not self.counts)


class Watch:
    """The progress of one trigger in one life of its rank. `draw` gives numbers from 0 to 1, for its probability."""

    __slots__ = ("_draw", "_due", "_in_step", "_matched", "_next", "_released", "alarm_ns", "spent", "trigger")

    def __init__(self, trigger: Trigger, draw: Callable[[], float], now_ns: int = 0) -> None:
        self.trigger = trigger
        self.spent = False  # it strikes no more in this life
        self.alarm_ns: int | None = None  # when to call `alarm`, if at all
        self._draw = draw
        self._released = False  # the other fault has struck, or there is none
        self._in_step = trigger.step is None  # the present step is one that counts
        self._matched = 0  # operations or passings that count, since the start of the life or of the step
        self._next = trigger.nth  # which of them is the next that can strike
        self._due = False  # one could have struck, but another fault was in its way
        if not trigger.waits:
            self._release(0, now_ns)

    def released(self, struck_ns: int, now_ns: int) -> None:
        """Called when the fault that it waits for struck at `struck_ns`, for the first time that matters."""
        if not self._released:
            self._release(struck_ns, now_ns)

    def _release(self, origin_ns: int, now_ns: int) -> None:
        self._released = True
        trigger = self.trigger
        if not trigger.is_timed:
            return
        self.alarm_ns = origin_ns + (trigger.at_ns or 0)
        if self.alarm_ns < now_ns:
            # An alarm in the past is due at once; a period goes on as if it had always been there.
            missed = 0 if trigger.period_ns is None else -(-(now_ns - self.alarm_ns) // trigger.period_ns)
            self.alarm_ns = now_ns if trigger.period_ns is None else self.alarm_ns + missed * trigger.period_ns

    def alarm(self) -> bool:
        """Called when the alarm is due; True if the fault strikes."""
        if self.spent or self.alarm_ns is None:
            return False
        strikes = self._chance()
        period_ns = self.trigger.period_ns
        self.alarm_ns = None if period_ns is None else self.alarm_ns + period_ns
        self.spent = period_ns is None
        return strikes

    def step(self, index: int) -> bool:
        """Called when a step begins; True if the fault strikes at its beginning."""
        trigger = self.trigger
        if self.spent or trigger.step is None:
            return False
        self._in_step = index == trigger.step or (
            not trigger.counts
            and trigger.every is not None
            and index > trigger.step
            and (index - trigger.step) % trigger.every == 0
        )
        self._matched, self._next, self._due = 0, trigger.nth, False
        return not trigger.counts and self._in_step and self._released and self._chance()

    def point(self, name: str) -> bool:
        """Called when a point is passed; True if the fault could strike there."""
        return name == self.trigger.point and self._match()

    def operation(self, name: str) -> bool:
        """Called when an operation is called; True if the fault could strike at it."""
        trigger = self.trigger
        if not trigger.on_operation or trigger.effects:
            return False
        return (trigger.operations is None or name in trigger.operations) and self._match()

    def effect(self, name: str) -> bool:
        """Called before a disk is changed, or a store asked; True if the fault could strike at it."""
        return name in self.trigger.effects and self._match()

    def struck(self) -> None:
        """Called when it has struck where `step`, `point`, `operation` or `effect` said that it could."""
        self._due = False
        self.spent = self.trigger.every is None

    def _match(self) -> bool:
        if self.spent or not self._released or not self._in_step:
            return False
        self._matched += 1
        if self._matched == self._next:
            self._next += self.trigger.every or 1
            self._due = self._due or self._chance()
        return self._due

    def _chance(self) -> bool:
        return self.trigger.probability is None or self._draw() < self.trigger.probability


class Watches(Generic[_Key]):
    """All triggers of one rank in one life, in the order in which their faults strike.

    `step`, `point` and `operation` return the keys of the faults that strike now. Those at one operation all have the
    same `when`, that of the first; none follows one that raises.
    """

    def __init__(self) -> None:
        self._watches: list[tuple[_Key, Watch]] = []

    def add(self, key: _Key, watch: Watch) -> None:
        """Add a trigger after those already there."""
        self._watches.append((key, watch))

    def __iter__(self) -> Iterator[tuple[_Key, Watch]]:
        return iter(self._watches)

    def step(self, index: int) -> list[_Key]:
        """Called when the rank's program reports that a step begins."""
        return self._choose(lambda watch: watch.step(index))

    def point(self, name: str) -> list[_Key]:
        """Called when the rank's program passes a point."""
        return self._choose(lambda watch: watch.point(name))

    def operation(self, name: str) -> list[_Key]:
        """Called when the rank calls an operation."""
        return self._choose(lambda watch: watch.operation(name))

    def effect(self, name: str) -> list[_Key]:
        """Called when the rank changes a disk, or asks a store."""
        return self._choose(lambda watch: watch.effect(name))

    def _choose(self, could_strike: Callable[[Watch], bool]) -> list[_Key]:
        chosen: list[_Key] = []
        last: Trigger | None = None
        for key, watch in self._watches:
            if not could_strike(watch):
                continue
            if last is None or (last.when == watch.trigger.when and not last.raises):
                watch.struck()
                last = watch.trigger
                chosen.append(key)
        return chosen
