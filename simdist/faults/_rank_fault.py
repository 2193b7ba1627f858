"""Faults that strike one rank when a trigger comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from simdist.faults._fault import Fault, Machine, Problem, Surroundings
from simdist.faults._fields import (
    COUNT,
    LIFE,
    MOMENT,
    OPERATION,
    PERIOD,
    POINT,
    PROBABILITY,
    RANK,
    SIDE,
    STEP,
)
from simdist.faults._operations import STORE, effects_of, operations_of
from simdist.faults._stage import StruckRank
from simdist.faults._trigger import Trigger, When

if TYPE_CHECKING:
    import torch

__all__ = ["Payload", "RankFault"]

Payload: TypeAlias = "bytes | list[torch.Tensor]"
"""What an operation carries: the bytes of a write, or the tensors that it reads."""


class RankFault(Fault):
    """A fault that strikes one rank when its trigger comes. A subclass overrides `strike`, `exception`, `change` or
    `change_result`.

    The trigger is a virtual time (`at_ns`), a training step that the program names with `simdist.step(i)` (`at_step`),
    a point that it names with `simdist.point("saved")` (`at_point`), an operation, or with none of these the strike of
    another fault (`after`). `op` is a name such as "all_reduce", of an event or of the function that the program calls
    (None: any), an effect on a simulated disk ("write", "fsync", "rename", ...; "storage": any), or "store", a request
    to a store. `nth` counts matching operations, or passings of the point, from 1, from the start of the life or, with
    `at_step`, from the start of that step; with `after`, from the strike of that fault. `when` says on which side of
    the operation it strikes; "during" waits until the peers are inside it too and data is under way, and comes when
    half of a write is done.

    It strikes once; with `period_ns` repeatedly in time, with `every` after each so many operations, passings or steps.
    With `probability` each of these moments strikes only with that chance; the numbers are drawn from the run's seed
    and the fault's own words. `life` is the restart round it belongs to, 0 for the first; None strikes in every life.

    Example:
        >>> class Preempted(RankFault):
        ...     def strike(self, rank):
        ...         rank.kill("SIGTERM")
        >>> Preempted(rank=1, at_step=3).begins()
        'preempted strikes rank 1'
    """

    may_repeat: ClassVar[bool] = True  # it can strike twice in one life
    # A struck rank may miss the operation: real peers then wait at theirs until they know.
    may_keep_out: ClassVar[bool] = True
    drops: ClassVar[bool] = False  # the effect that it strikes is reported as done, but is not done

    rank: Annotated[int, RANK]
    at_ns: Annotated[int | None, MOMENT] = None
    at_step: Annotated[int | None, STEP] = None
    op: Annotated[str | None, OPERATION] = None
    nth: Annotated[int | None, COUNT] = None
    when: Annotated[When, SIDE] = "before"
    life: Annotated[int | None, LIFE] = 0
    at_point: Annotated[str | None, POINT] = None
    every: Annotated[int | None, COUNT] = None
    period_ns: Annotated[int | None, PERIOD] = None
    probability: Annotated[float | None, PROBABILITY] = None

    def strike(self, rank: StruckRank) -> None:
        """Strike, in a simulation or on a real rank; the run's events report the strike before.

        On a trigger with a time this runs outside the rank's code; else the rank's own thread runs it.
        """

    def exception(self) -> Exception | None:
        """Return the exception that the program gets for the operation, or at the step or point; None: none."""
        return None

    def change(self, payload: Payload) -> Payload:
        """Return a replacement for what the operation carries: the bytes of a write, or a list of the tensors it reads.

        In a simulation only. The tensors are the program's own, or copies that had to be made of them. They may be
        changed in place.
        """
        return payload

    def change_drawn(self, payload: Payload, draw: Callable[[], float]) -> Payload:
        """As `change`, for a fault that draws its change: `draw` gives numbers from 0 to 1, by the run's seed."""
        return self.change(payload)

    def change_result(self, results: list[torch.Tensor], draw: Callable[[], float]) -> Sequence[torch.Tensor]:
        """Return a replacement for a collective's results on the rank: a list of the tensors that it has filled.

        In a simulation only, when the result is there; the fault strikes "after" then. The tensors are the program's
        own, or will be copied to these. They may be changed in place. `draw` gives numbers from 0 to 1, by the run's
        seed.
        """
        return results

    @property
    def part_bytes(self) -> int | None:
        """The number of bytes of a write that are done; None is half of them if it strikes "during", else all."""
        return None

    @property
    def on_operation(self) -> bool:
        """True if an operation triggers it."""
        return self.op is not None or (self.nth is not None and self.at_point is None)

    @property
    def needs_disk(self) -> bool:
        """True if an effect on a disk triggers it."""
        return bool(effects_of(self.op))

    @property
    def operations(self) -> tuple[str, ...] | None:
        """The operations that match, as events name them; None: any."""
        return None if self.op is None else operations_of(self.op)

    @property
    def trigger(self) -> Trigger:
        """The trigger: when it strikes."""
        return Trigger(
            at_ns=self.at_ns,
            period_ns=self.period_ns,
            step=self.at_step,
            point=self.at_point,
            on_operation=self.on_operation,
            operations=self.operations,
            effects=(STORE,) if self.op == STORE else effects_of(self.op),
            nth=self.nth or 1,
            every=self.every,
            when=self.when,
            probability=self.probability,
            waits=self.after is not None,
            raises=self._raises(),
        )

    @classmethod
    def _raises(cls) -> bool:
        return cls.exception is not RankFault.exception

    @property
    def changes(self) -> Callable[[Payload, Callable[[], float]], Payload] | None:
        """Its `change_drawn`, if the class overrides that or `change`."""
        kind = type(self)
        own = kind.change is not RankFault.change or kind.change_drawn is not RankFault.change_drawn
        return self.change_drawn if own else None

    @property
    def changes_result(self) -> Callable[[list[torch.Tensor], Callable[[], float]], Sequence[torch.Tensor]] | None:
        """Its `change_result`, if the class overrides it."""
        return None if type(self).change_result is RankFault.change_result else self.change_result

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of the trigger, of the rank, and of a payload that is not moved."""
        changes = self.changes is not None or self.changes_result is not None
        if not world.moves_payloads and changes and self.op != "write":
            yield "", f'{self.kind} changes what an operation carries, and values="shapes" moves no payloads'
        if world.fine("at_ns", "at_step", "at_point", "op", "nth", "after"):
            yield from self._problems_of_source()
        if world.fine("when", "op", "nth") and self.when != "before" and not self.on_operation:
            yield "when", f"{self.when!r} needs an operation; give op or nth"
        if world.fine("nth") and self.nth is not None and self.nth < 1:
            yield "nth", f"{self.nth} is not a count; the first operation is 1"
        if world.fine("at_step") and self.at_step is not None and self.at_step < 0:
            yield "at_step", f"{self.at_step} never comes; steps count from 0"
        yield from self._problems_of_repetition(world)
        last = world.max_restarts
        if last is not None and world.fine("life") and self.life is not None and self.life > last:
            yield "life", f"{self.life} never comes: with max_restarts = {last} the last life is {last}"
        if self._raises():
            if world.fine("at_ns") and self.at_ns is not None:
                yield "at_ns", "no program raises at a time; give an operation, a step or a point"
            elif world.fine("at_ns", "at_step", "at_point", "op", "nth", "after") and self.trigger.is_timed:
                yield "after", "no program raises at a time; give an operation, a step or a point as well"
            if world.fine("when", "op", "nth") and self.when in ("during", "after") and self.on_operation:
                yield "when", f"{self.when!r} is too late to raise; the exception comes in place of the operation"
        yield from super().problems(world)

    def _problems_of_source(self) -> Iterator[Problem]:
        if self.at_ns is None and self.at_step is None and self.at_point is None and not self.on_operation:
            if self.after is None:
                yield "", "no trigger; give a time, a step, a point or an operation"
        elif self.at_ns is not None and (self.at_step is not None or self.at_point is not None or self.on_operation):
            yield "", "a time and a step, point or operation are two triggers; give one of them"
        if self.at_point is not None and self.op is not None:
            yield "", "a point and an operation are two triggers; give one of them"

    def _problems_of_repetition(self, world: Surroundings) -> Iterator[Problem]:
        sources = ("at_ns", "at_step", "at_point", "op", "nth", "after")
        if world.fine("every") and self.every is not None:
            if self.every < 1:
                yield "every", f"{self.every} is not a count; 1 strikes each time"
            elif not self.may_repeat:
                yield "every", f"a {self.kind} strikes once in a life"
            elif world.fine(*sources) and self.at_step is None and self.at_point is None and not self.on_operation:
                yield "every", "counts operations, points or steps, and there is none; a time has a period"
        if world.fine("period_ns") and self.period_ns is not None:
            if self.period_ns < 1:
                yield "period_ns", "0 ns is no period"
            elif not self.may_repeat:
                yield "period_ns", f"a {self.kind} strikes once in a life"
            elif world.fine(*sources) and not self.trigger.is_timed:
                yield "period_ns", "needs a time to begin at; operations, points and steps have every"

    def real_obstacle(self, machine: Machine) -> str:
        """Return None: strikes on a rank happen inside it. But nothing shows their effects on real disks and stores."""
        if self.op == STORE:
            return "requests to a store are seen in a simulation only"
        if self.changes_result is not None:
            return "what a real operation fills is not changed"
        if self.changes is not None or (self.drops and not effects_of(self.op)):
            return "what a real operation reads is not changed, and none is left out"
        return f"{self.op} is an effect on a simulated disk" if effects_of(self.op) else ""
