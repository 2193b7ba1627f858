"""Gradients that are kept from one optimizer step to the next, on some ranks or on all.

A rank that leaves `zero_grad` out adds its next gradients to the old ones. If the ranks then average their gradients,
the sums are equal everywhere: the copies stay equal, and the training goes on with gradients that nobody meant.

Gradients are looked at when the backward passes between two steps of an optimizer begin. One that is cleared in any of
them is not kept: a rank may also compute gradients only to look at them. Ranks are compared where they hold replicas
(see `_tables`). If all ranks keep their gradients, these are reported if nothing has changed them since a step
when a loss adds to them: a program may scale gradients instead, or copy them from other parameters. The first step is
left out, and so is an optimizer that has cleared gradients once.

Doubt: on a device, whether a gradient is zero may not be known yet. It counts as kept only beside a rank that has no
gradient there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from simdist.judges._bits import is_zero
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges.replicas._leaves import leaves_of
from simdist.judges.replicas._tables import (
    Copy,
    Key,
    Optimized,
    Table,
    gradient_versions,
    usual_and_blamed,
)
from simdist.values import rank_text

__all__ = ["KeptGradients"]

_MOST_ROWS = 512  # steps after which some ranks have still to call backward; a rank so far behind is left out


class _Left(Enum):
    """What is left of a gradient; absent ones are not recorded."""

    ZERO = "zero"
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Row:
    """The gradients of one rank before it adds to them, since a step of an optimizer."""

    optimized: Optimized
    number: int
    left: dict[Key, _Left] = field(default_factory=dict)
    moment: Moment | None = None  # of the first backward pass
    versions: Sequence[int] = ()  # of gradients when the step ended, while the rank has never cleared any
    never_cleared: str = ""  # a parameter to whose gradient of the step the first backward pass adds, or no name


class KeptGradients:
    """Watches one world; `tables` has the parameters of its optimizers, by life and index of the optimizer."""

    def __init__(self, hearing: Hearing, tables: Mapping[tuple[int, int], Table]) -> None:
        self._hearing = hearing
        self._tables = tables
        self._open: dict[tuple[int, int], dict[int, _Row]] = {}  # by life and rank, then by optimizer
        self._rows: dict[tuple[int, int, int], dict[int, _Row]] = {}  # by life, optimizer and step, then by rank
        self._clears: set[tuple[int, int, int]] = set()  # lives, ranks and optimizers with gradients that were cleared
        self._found = False
        hearing.listen(OptimizerStepped, self._on_step)
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(OptimizerBegins, self._on_begin)

    def _on_step(self, event: OptimizerStepped) -> None:
        process = event.process
        table = self._tables.get((process.life, event.index))
        optimized = None if table is None else table.ranks.get(process.rank)
        if optimized is not None and not self._found:
            rows = self._open.setdefault((process.life, process.rank), {})
            row = rows[event.index] = _Row(optimized, event.number)
            if event.number and (process.life, process.rank, event.index) not in self._clears:
                row.versions = gradient_versions(optimized.copies)

    def _on_backward(self, event: BackwardCalled) -> None:
        process = event.process
        for row in self._open.get((process.life, process.rank), {}).values():
            first = row.moment is None
            if first:
                row.moment = self._hearing.moment(process, event.where)
            elif not row.left:
                continue
            copies = row.optimized.copies
            for copy in copies:  # hot: most often there are no gradients
                if first or row.left.get(copy.key) in (_Left.KEPT, _Left.UNKNOWN):
                    left = _left_of(copy)
                    if left is not None:
                        row.left[copy.key] = left
                    elif not first:
                        row.left[copy.key] = _Left.ZERO
            if first and row.left and row.versions == gradient_versions(copies):
                leaves = {id(leaf) for leaf in leaves_of(event.tensors, event.edges)}
                kept = [copy for copy in copies if row.left.get(copy.key) is _Left.KEPT]
                row.never_cleared = next((copy.name for copy in kept if id(copy.tensor()) in leaves), "")

    def _on_begin(self, event: OptimizerBegins) -> None:
        process = event.process
        row = self._open.get((process.life, process.rank), {}).pop(event.index, None)
        table = self._tables.get((process.life, event.index))
        if row is None or row.moment is None or table is None or self._found:
            return
        if _Left.KEPT not in row.left.values() or (row.number and not row.never_cleared):
            self._clears.add((process.life, process.rank, event.index))
        where = process.life, event.index, row.number
        if where in self._rows or len(self._rows) <= _MOST_ROWS:
            rows = self._rows.setdefault(where, {})
            rows[process.rank] = row
            if len(rows) == self._hearing.world_size:
                del self._rows[where]
                self._compare(table, row.number, rows)

    def _compare(self, table: Table, number: int, rows: Mapping[int, _Row]) -> None:
        if self._found:
            return
        first, *others = rows.values()
        if all(row.left == first.left for row in others):
            if _Left.KEPT in first.left.values() and all(row.never_cleared for row in rows.values()):
                self._report_all(first)
            return
        for key, ranks in table.sets():
            copy = table.ranks[ranks[0]].copy(key)
            left = {rank: rows[rank].left.get(key) for rank in ranks}
            unknown_counts = None in left.values()
            kept = {
                rank: each is _Left.KEPT or (unknown_counts and each is _Left.UNKNOWN) for rank, each in left.items()
            }
            cleared = any(each is None or each is _Left.ZERO for each in left.values())
            if copy is None or not cleared or not any(kept.values()):
                continue
            if copy.strict or table.are_replicas(key, ranks):
                self._report(copy.name, number, kept, rows)
                return

    def _report_all(self, row: _Row) -> None:
        self._found = True
        assert row.moment is not None
        self._hearing.find(
            f"the gradient of {row.never_cleared} is never cleared: "
            f"the backward pass after optimizer step {row.number} adds to it",
            row.moment,
            subject=row.never_cleared,
            step=row.number + 1,
            notes=["call zero_grad before the first backward pass of each step"],
        )

    def _report(self, name: str, number: int, kept: Mapping[int, bool], rows: Mapping[int, _Row]) -> None:
        self._found = True
        usual, blamed = usual_and_blamed(kept, [rank for rank, is_kept in kept.items() if is_kept])
        here, there = ("kept", "cleared") if kept[blamed] else ("cleared", "kept")
        mine, other = rows[blamed].moment, rows[usual[0]].moment
        assert mine is not None
        assert other is not None
        self._hearing.find(
            f"the gradient of {name} is {here} after optimizer step {number}, and {there} on {rank_text(usual)}",
            mine,
            subject=name,
            step=number + 1,
            against=other.where,
            notes=["a backward pass adds to what is kept: does every rank call zero_grad?"],
        )


def _left_of(copy: Copy) -> _Left | None:
    gradient = getattr(copy.tensor(), "grad", None)
    if gradient is None:
        return None
    zero = is_zero(gradient)
    return _Left.UNKNOWN if zero is None else _Left.ZERO if zero else _Left.KEPT
