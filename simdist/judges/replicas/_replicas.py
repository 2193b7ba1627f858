"""The judge of replicas: copies of the same tensor on several ranks stay equal, bit for bit, after each optimizer step.

Tensors that DDP or DTensors replicate must be equal from the first step on. Tensors that only look like replicas (see
`_tables`) may be another design: ranks that average from time to time, or pipeline stages that begin with the
same seed. So a difference between them is first a suspicion. It is dropped if the copies are equal again, before a
later step or at the end. It counts only if something shows that they were meant to be equal: they, or other copies of
the same ranks, were equal after an earlier step; a collective filled them, or their gradients, before the first step;
or the ranks exchange nothing that could be part of a model. Ranks whose copies differed and were equal again later are
not suspected any more.

Parameters that are trained without an optimizer are compared in backward passes (`_leaves`): if some parameters of the
first loss on some rank are in no optimizer, and are changed, those of all ranks are compared. So are they if an
optimizer of another rank steps them, and the ranks reduce their gradients together: then the owner has to send them.

Invariants:
- Ranks that run ahead do not wait: rows of bits are kept until all ranks have theirs, and are compared then.
- The rank to blame is the first that differs from the majority. Between equally many, it is one that left the step out,
  else the later one.
- After the first finding, nothing is checked any more.

Doubt: optimizers of ranks are matched by the order of their first use. If ranks use several in different orders, they
are not compared correctly; usually their parameters have different bits, and so are no replicas. On devices parameters
are read when their values are there; gradients and states that are there later are not compared.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from simdist.c10d import WorkIssued
from simdist.judges._bits import bits_of, bits_of_each, bits_of_written, follow, place_in_memory, tensors_in
from simdist.judges._contents import Content
from simdist.judges._events import BackwardCalled, ModelWrapped, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Ending, Hearing, Judge
from simdist.judges._models import WrappedModel, wrapped_model
from simdist.judges._parameter_names import name_in_group, names_in_frames
from simdist.judges.replicas._kept_gradients import KeptGradients
from simdist.judges.replicas._leaves import Leaves, leaves_of
from simdist.judges.replicas._modes import EqualModes
from simdist.judges.replicas._tables import (
    Copy,
    Filled,
    Key,
    Optimized,
    Row,
    Table,
    copy_of,
    note_first_gradients,
    usual_and_blamed,
)
from simdist.judges.replicas._undone_steps import UndoneSteps
from simdist.judges.replicas._untrained import Untrained
from simdist.process import SimProcess
from simdist.trace import events_of
from simdist.values import rank_text

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

__all__ = ["Replicas"]

_MOST_ROWS = 512  # steps that some ranks have still to take; a rank so far behind is left out
_SMALL = 64  # bytes of a collective that carries a loss or a count, and no part of a model
_FILLING = ("broadcast", "all_reduce", "all_gather", "all_gather_single", "scatter")
_WHAT = ("parameter", "gradient", "optimizer state")
_LEAVES = -1  # in place of an optimizer's index: the parameters of losses


class Replicas(Judge):
    """Parameters, gradients and optimizer state that several ranks hold are equal, bit for bit, after each step.

    Replicas are the parameters of DDP models, and the replicated parts of DTensors. Without these, they are parameters
    at the same place of an optimizer, or of a loss, with the same shape on several ranks, if their bits are equal
    before the first step, or the ranks reduce the gradient together. Also, the modules of a DDP model are in the same
    mode, training or evaluation, on all ranks, an optimizer steps the parameters that get gradients, gradients are
    cleared between its steps, those of shards, too, no broadcast undoes a step, and a state dict that is loaded has
    some of the names of the model.
    """

    name: ClassVar[str] = "replicas"
    compares_values: ClassVar[bool] = True

    def begin(self, hearing: Hearing) -> None:
        """Listen to every step of an optimizer."""
        watch = _Watch(hearing)
        hearing.listen(ModelWrapped, watch.on_model)
        hearing.listen(BackwardCalled, watch.on_backward)
        hearing.listen(OptimizerBegins, watch.on_begin)
        hearing.listen(OptimizerStepped, watch.on_step)
        hearing.listen(WorkIssued, watch.on_work)
        hearing.at_end(watch.on_end)
        EqualModes(hearing)
        Untrained(hearing)
        KeptGradients(hearing, watch.tables)
        UndoneSteps(hearing)


@dataclass(slots=True)
class _Difference:
    """Copies that differ after a step in one `part`: 0 the parameter, 1 its gradient, 2 its state."""

    table: Table
    key: Key
    number: int
    part: int
    values: dict[int, int]  # the bits by rank
    rows: dict[int, Row]
    before: dict[int, Row | None]  # rows of the step before
    notes: Sequence[str] = ()


@dataclass(slots=True)
class _Suspicion:
    """A difference between copies that were replicas only by their bits."""

    table: Table
    difference: _Difference
    held: dict[int, torch.Tensor | None]  # the tensors of the copies, by rank


class _Late:
    """A row whose bits are still on a device: each is read when it is there, before a later operation changes it."""

    def __init__(self, table: Table, number: int, row: Row, rank: int, complete: Callable[[_Late], None]) -> None:
        self.table, self.number, self.row, self.rank = table, number, row, rank
        self.bits = list(row.bits)
        self._complete = complete
        self._missing: dict[int, tuple[Copy, Callable[[], bool]]] = {}  # by place, with whether its values are there

    def follow(self, copies: Sequence[Copy], wanted: Collection[int]) -> None:
        """Look at these copies when they are there."""
        for place in wanted:
            tensor = copies[place].tensor()
            if self.bits[place][0] is None and tensor is not None:
                self._missing[place] = copies[place], follow(tensor, self)
        self.look()

    def look(self) -> None:
        """Read what is there; with the last of it, the row is complete."""
        for place, (copy, is_there) in list(self._missing.items()):
            if is_there():
                del self._missing[place]
                tensor = copy.tensor()
                self.bits[place] = (None if tensor is None else bits_of_written(tensor), *self.bits[place][1:])
        if not self._missing:
            self._complete(self)


class _Watch:
    """The judge's state for one world."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self.tables: dict[tuple[int, int], Table] = {}  # by life, and index of the optimizer
        self._models: dict[tuple[int, int], list[WrappedModel]] = {}  # by life and rank
        self._filled: dict[tuple[int, int], Filled] = {}  # by life and rank, until the first step
        self._leaves: dict[tuple[int, int], Leaves] = {}  # parameters of the first loss, by life and rank
        self._beside: set[int] = set()  # lives in which some rank trains parameters that are in no optimizer
        self._stepped: set[tuple[int, int]] = set()  # lives and ranks that have taken a step
        self._late: dict[_Late, None] = {}
        self._suspicion: _Suspicion | None = None
        self._done = False

    # -- what the program declares -------------------------------------------------------------------------------

    def on_model(self, event: ModelWrapped) -> None:
        """Register a model in DDP: all its parameters are replicas over its group."""
        known = self._models.setdefault((event.process.life, event.process.rank), [])
        known.append(wrapped_model(event, len(known)))

    def on_work(self, event: WorkIssued) -> None:
        """Note a collective that may fill parameters before the first step."""
        work = event.work
        process = work.process
        who = process.life, process.rank
        if who in self._stepped or event.name not in _FILLING:
            return
        filled = self._filled.setdefault(who, Filled())
        for tensor in tensors_in(work.outputs):
            place = place_in_memory(tensor)
            if place is not None:
                filled.places.add(place)
            if event.reduction in ("sum", "avg") and event.name == "all_reduce":
                filled.sums.append((place, tensor.numel(), work.member.communicator))

    # -- parameters of losses ------------------------------------------------------------------------------------

    def on_backward(self, event: BackwardCalled) -> None:
        """Compare a loss's parameters at a backward pass, after the changes since the earlier passes."""
        process = event.process
        who = process.life, process.rank
        leaves = self._leaves.get(who)
        if self._done or (leaves is not None and leaves.settled and process.life not in self._beside):
            return
        filled = self._filled.setdefault(who, Filled())
        if leaves is None:
            self._leaves[who] = Leaves(self._loss(event))
        else:
            leaves.passes += 1
            if leaves.passes == 1:
                leaves.note_first_pass(filled)
            elif filled.sums:  # of the first step, after several passes
                leaves.note_reduced(filled)
            known = leaves.settled or process.life in self._beside
            if not known:
                optimized = self._optimized(*who)
                if leaves.are_trained_beside(optimized) or self._are_trained_elsewhere(who, leaves, optimized):
                    self._beside.add(process.life)
            if process.life in self._beside:
                self._add_leaves(leaves, event)
        filled.sums.clear()

    def _loss(self, event: BackwardCalled) -> Optimized:
        """Return a loss's parameters. Never strict: ranks may take different numbers of passes for one step."""
        names = names_in_frames(sys._getframe(1))
        held = self._held(
            event.process,
            event.where,
            lambda: None,
            [
                (("leaf", index), leaf, names.get(id(leaf)) or f"parameter {index} of the loss")
                for index, leaf in enumerate(leaves_of(event.tensors, event.edges))
            ],
        )
        for copy in held.copies:
            copy.strict, copy.synced = False, copy.synced or copy.strict
        return held

    def _add_leaves(self, leaves: Leaves, event: BackwardCalled) -> None:
        process, held = event.process, leaves.held
        table = self.tables.setdefault((process.life, _LEAVES), Table(of_leaves=True))
        if process.rank not in table.ranks:
            table.ranks[process.rank] = held
            first = Content([(copy.first, None, None) for copy in held.copies])
            held.last = Row(held.moment, first, 0)
            self._put(table, -1, held.last, process.rank)
        content = Content([(bits, None, None) for bits in bits_of_each(leaves.tensors())])
        moment = self._hearing.moment(process, event.where)
        held.last = Row(moment, content, process.operations, held.last)
        self._put(table, leaves.passes - 1, held.last, process.rank)

    def _optimized(self, life: int, rank: int) -> set[int]:
        """Return the ids of the parameters in the rank's optimizers."""
        return {
            id(copy.tensor())
            for (of_life, index), table in self.tables.items()
            if of_life == life and index != _LEAVES and rank in table.ranks
            for copy in table.ranks[rank].copies
        }

    def _are_trained_elsewhere(self, who: tuple[int, int], leaves: Leaves, optimized: set[int]) -> bool:
        """True if another rank's optimizer steps a parameter that is in none of this rank."""
        rarely = leaves.passes & (leaves.passes - 1)  # it takes long with many ranks
        beside = [] if leaves.settled or rarely else leaves.outside(optimized)
        others = [(key, each) for key, each in self._leaves.items() if key[0] == who[0] and key != who]
        return bool(beside) and any(each.has_stepped(beside, self._optimized(*key)) for key, each in others)

    # -- steps ---------------------------------------------------------------------------------------------------

    def on_begin(self, event: OptimizerBegins) -> None:
        """Register an optimizer before its first step; before later steps, check suspected copies again."""
        if self._done:
            return
        process = event.process
        if event.number == 0:
            table = self.tables.setdefault((process.life, event.index), Table())
            optimized = table.ranks[process.rank] = self._register(event)
            self._add(table, -1, process, event)
            optimized.note_gradients()
            return
        known = self.tables.get((process.life, event.index))
        if known is not None and process.rank in known.ranks:
            known.ranks[process.rank].note_gradients()
        if self._suspicion is not None:
            self._look_again()

    def on_step(self, event: OptimizerStepped) -> None:
        """Keep the bits of a rank after a step."""
        process = event.process
        table = self.tables.get((process.life, event.index))
        if self._done or table is None or process.rank not in table.ranks:
            return
        optimized = table.ranks[process.rank]
        optimized.steps = event.number + 1
        for model in self._models.get((process.life, process.rank), ()):
            optimized.joins = optimized.joins or model.joins()
        self._add(table, event.number, process, event)

    def _register(self, event: OptimizerBegins) -> Optimized:
        process, optimizer = event.process, event.optimizer
        who = process.life, process.rank
        filled = self._filled.setdefault(who, Filled())
        is_first = who not in self._stepped  # reductions are only noted until a rank's first step
        self._stepped.add(who)
        names = names_in_frames(sys._getframe(1))
        found = [
            ((place, index), parameter, name_in_group(group, place, index, names))
            for place, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        ]
        held = self._held(process, event.where, weakref.ref(optimizer), found)
        gradients = [each.grad for _, each, _ in found if each.grad is not None]
        by_place, whole = filled.reducers(sum(each.numel() for each in gradients))
        for copy, (_, parameter, _) in zip(held.copies, found, strict=True):
            if parameter.grad is not None and is_first:
                own = place_in_memory(parameter.grad)
                copy.reduced = whole if own is None else by_place.get(own, whole)
        filled.places.clear()
        return held

    def _held(
        self,
        process: SimProcess,
        where: str,
        optimizer: Callable[[], Optimizer | None],
        found: Sequence[tuple[Key, torch.Tensor, str]],
    ) -> Optimized:
        """Return the parameters at these places now, with their names."""
        who = process.life, process.rank
        models, places = self._models.get(who, []), self._filled[who].places
        copies = []
        for key, parameter, name in found:
            owner = next((each for each in models if each.name_of(parameter) is not None), None)
            if owner is None:
                copies.append(copy_of(key, name, parameter, places))
                continue
            name = owner.name_of(parameter) or ""
            copy = copy_of(("ddp", owner.number, name), name, parameter, set())
            copy.ranks = owner.ranks if len(owner.ranks) > 1 else ()
            copy.strict = owner.has_no_hook()
            copies.append(copy)
        moment = self._hearing.moment(process, where)
        return Optimized(optimizer, moment, copies, {copy.key: place for place, copy in enumerate(copies)})

    def _add(self, table: Table, number: int, process: SimProcess, event: OptimizerBegins | OptimizerStepped) -> None:
        """Keep a rank's bits after a step; with the last rank's bits, compare."""
        optimized = table.ranks[process.rank]
        # The places to read: all of them, while ranks are missing.
        wanted: Collection[int] = range(len(optimized.copies))
        if len(table.ranks) == self._hearing.world_size:
            wanted = table.shared_places(process.rank)
            if not wanted and number >= 0:
                return
        if number < 0:
            content = Content([(copy.first, None, None) for copy in optimized.copies])
        else:
            if number == 0:
                note_first_gradients(optimized.copies)
            optimizer = optimized.optimizer()
            states = {} if optimizer is None else optimizer.state
            if len(wanted) == len(optimized.copies):  # hot
                tensors = [copy.tensor() for copy in optimized.copies]
            else:
                tensors = [copy.tensor() if place in wanted else None for place, copy in enumerate(optimized.copies)]
            content = table.content_after(number, tensors, states)
            self._hearing.newest.note((process, event.index, number), tensors, content)
        row = Row(self._hearing.moment(process, event.where), content, process.operations, optimized.last)
        if number >= 0:
            optimized.last = row
            if content.used_up is None:  # ranks with equal content share the answer
                content.used_up = optimized.used_up()
        if not content.is_there(wanted):  # the device has not computed it yet
            late = _Late(table, number, row, process.rank, self._complete)
            self._late[late] = None
            late.follow(optimized.copies, wanted)
        else:
            self._put(table, number, row, process.rank)

    def _complete(self, late: _Late) -> None:
        """Add a row whose bits could not be read after the step."""
        if late in self._late:
            del self._late[late]
            used_up = late.row.content.used_up
            late.row.content = Content(late.bits)
            late.row.content.used_up = used_up
            if not self._done:
                self._put(late.table, late.number, late.row, late.rank)

    def _put(self, table: Table, number: int, row: Row, rank: int) -> None:
        if number in table.rows or len(table.rows) <= _MOST_ROWS:
            rows = table.rows.setdefault(number, {})
            rows[rank] = row
            if len(rows) == self._hearing.world_size:
                del table.rows[number]
                self._compare(table, number, rows)
                for each in rows.values():
                    each.before = None
        else:
            row.before = None

    # -- comparing -----------------------------------------------------------------------------------------------

    def _compare(self, table: Table, number: int, rows: dict[int, Row]) -> None:
        """Compare copies that should be equal, after all ranks have taken a step."""
        first, *others = rows
        row, places = rows[first], table.ranks[first].places
        if all(rows[rank].is_like(row) and table.ranks[rank].places == places for rank in others):
            if self._suspicion is not None and self._suspicion.table is table:
                self._drop(self._suspicion)
            if not table.kept:
                self._note_kept(table, rows)
            return
        self._note_kept(table, rows)
        for key, ranks in table.sets():
            self._compare_copies(table, key, [rank for rank in ranks if rank in rows], number, rows)
            if self._done:
                return

    def _note_kept(self, table: Table, rows: dict[int, Row]) -> None:
        for key, ranks in table.sets():
            if all(rank in rows for rank in ranks):
                table.note_kept(key, ranks, rows)

    def _compare_copies(self, table: Table, key: Key, ranks: list[int], number: int, rows: dict[int, Row]) -> None:
        copy = table.ranks[ranks[0]].copy(key) if len(ranks) > 1 else None
        if copy is None:
            return
        found = {rank: table.bits(rank, rows[rank], key) for rank in ranks}
        # In the order of causes: the gradient, before the step; then the state, computed from it; then the parameter.
        same = len({bits[0] for bits in found.values()}) == 1
        # A step may use its gradients up, as those do that share the work among ranks. That is no difference by itself.
        used_up = {
            rank for rank in ranks if same and table.ranks[rank].places[key] in (rows[rank].content.used_up or ())
        }
        for part in (1, 2, 0) if copy.strict else (0,):
            values = {
                rank: value
                for rank, bits in found.items()
                if (value := bits[part]) is not None and not (part == 1 and rank in used_up)
            }
            if len(set(values.values())) > 1 and (part != 2 or len(values) == len(ranks)):
                break
        else:
            return
        difference = _Difference(table, key, number, part, values, rows, {rank: rows[rank].before for rank in values})
        if copy.strict:
            self._report(difference)
        elif self._suspicion is None and tuple(values) not in table.reunited:
            if table.of_leaves:
                difference.notes = self._notes_of_owners(difference)
            held = {rank: _alias(table.ranks[rank].copy(key)) for rank in values}
            self._suspicion = _Suspicion(table, difference, held)

    def _look_again(self) -> None:
        """Drop the suspicion if the copies are equal again."""
        suspicion = self._suspicion
        if suspicion is not None:
            bits = {None if tensor is None else bits_of(tensor) for tensor in suspicion.held.values()}
            if len(bits) == 1 and None not in bits:
                self._drop(suspicion)

    def _drop(self, suspicion: _Suspicion) -> None:
        """Drop a suspicion, because the copies are equal again: their ranks are meant to differ at times."""
        suspicion.table.reunited.add(tuple(suspicion.difference.values))
        self._suspicion = None

    # -- the end -------------------------------------------------------------------------------------------------

    def on_end(self, ending: Ending) -> None:
        """Report a remaining suspicion at the end of the world, or steps that one rank never took."""
        for late in list(self._late):
            self._complete(late)
        for (life, _), table in list(self.tables.items()):
            for number in sorted(table.rows):
                rows = table.rows[number]
                if not self._done and len(rows) == len(table.ranks):
                    self._compare(table, number, rows)
            if not self._done and self._suspicion is None and ending.all_returned(life):
                self._look_at_counts(table)
        self._look_again()
        suspicion = self._suspicion
        if suspicion is not None and not self._done:
            ranks = list(suspicion.difference.values)
            if suspicion.table.are_replicas(suspicion.difference.key, ranks) or _exchange_nothing(ending, ranks):
                self._report(suspicion.difference)

    def _look_at_counts(self, table: Table) -> None:
        for key, ranks in table.sets():
            steps = {rank: table.ranks[rank].steps for rank in ranks}
            copy = table.ranks[ranks[0]].copy(key)
            if len(set(steps.values())) < 2 or any(table.ranks[rank].joins for rank in ranks) or copy is None:
                continue
            last = {rank: row for rank in ranks if (row := table.ranks[rank].last) is not None}
            if not copy.strict and not table.are_replicas(key, ranks):
                continue
            usual, blamed = usual_and_blamed(steps)
            self._done = True
            self._hearing.find(
                f"{copy.name} is a replica, but took {steps[blamed]} optimizer steps here, "
                f"and {steps[usual[0]]} on {rank_text(usual)}",
                last[blamed].moment if blamed in last else table.ranks[blamed].moment,
                subject=copy.name,
                step=steps[blamed],
                against=last[usual[0]].moment.where if usual[0] in last else "",
            )
            return

    def _report(self, found: _Difference) -> None:
        """Report that copies differ after a step."""
        table, key, part, number = found.table, found.key, found.part, found.number
        self._done = True
        self._suspicion = None
        self.tables.clear()
        idle = {
            rank
            for rank, row in found.before.items()
            if row is not None and part == 0 and table.bits(rank, row, key)[0] == found.values[rank]
        }
        usual, blamed = usual_and_blamed(found.values, idle)
        copy = table.ranks[blamed].copy(key)
        name = "" if copy is None else copy.name
        what = name if name.startswith("parameter ") else f"parameter {name}"
        what = what if part == 0 else f"{_WHAT[part]} of {name}"
        if table.of_leaves:
            when = f"before backward pass {number + 1}"
        else:
            when = "before the first optimizer step" if number < 0 else f"after optimizer step {number}"
        others = f"from {rank_text(usual)}" if len(usual) > 1 or len(found.values) == 2 else "on every rank"
        self._hearing.find(
            f"{what} differs {others} {when}",
            found.rows[blamed].moment,
            subject=name,
            step=max(number, 0),
            against=found.rows[usual[0]].moment.where,
            notes=[*_notes(found, blamed, usual[0], idle), *found.notes],
        )

    def _notes_of_owners(self, found: _Difference) -> list[str]:
        """Return a note if optimizers of some ranks step a parameter of a loss, and those of others do not."""
        owners: list[int] = []
        others: list[int] = []
        for rank, row in found.rows.items():
            copy = found.table.ranks[rank].copy(found.key)
            tensor = None if copy is None else copy.tensor()
            if rank in found.values and tensor is not None:
                (owners if id(tensor) in self._optimized(row.moment.life, rank) else others).append(rank)
        if not owners or not others:
            return []
        return [f"an optimizer of {rank_text(owners)} steps it, and none of {rank_text(others)}: is it sent there?"]


def _notes(found: _Difference, blamed: int, usual: int, idle: set[int]) -> list[str]:
    """Return notes that explain why copies differ."""
    table, key = found.table, found.key
    mine, other = found.rows[blamed], found.rows[usual]
    lines = []
    copy = table.ranks[blamed].copy(key)
    if found.number < 0 and copy is not None and copy.reduced is not None:
        lines.append("their gradients are reduced together")
    if blamed in idle and usual not in idle:
        lines.append("the step left it as it was")
    gradients = [table.bits(blamed, mine, key)[1], table.bits(usual, other, key)[1]]
    if found.part == 0 and found.number >= 0 and None not in gradients:
        lines.append(f"its gradients {'were the same' if gradients[0] == gradients[1] else 'differ too'}")
    if found.part == 1:
        lines.append("it was not reduced over all ranks, or was changed after that")
    if mine.operations != other.operations:
        lines.append(
            f"rank {blamed} had called {mine.operations} operations by then, rank {usual} {other.operations}: "
            "they are not in the same step"
        )
    return lines


def _exchange_nothing(ending: Ending, ranks: Sequence[int]) -> bool:
    """True if the ranks called collectives, but exchanged nothing that could be part of a model."""
    called = False
    for event in events_of(ending.events, "issue"):
        if event.rank not in ranks:
            continue
        data: Mapping[str, Any] = event.data
        if data["op"] in ("send", "recv") or int(data["nbytes"] or 0) > _SMALL:
            return False
        called = True
    return called


def _alias(copy: Copy | None) -> torch.Tensor | None:
    tensor = None if copy is None else copy.tensor()
    return None if tensor is None else tensor.detach()
