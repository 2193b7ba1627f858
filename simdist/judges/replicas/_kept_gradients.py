"""Gradients that are kept from one optimizer step to the next, on some ranks or on all.

A rank that leaves `zero_grad` out adds its next gradients to the old ones. If the ranks then average their gradients,
the sums are equal everywhere: the copies stay equal, and the training goes on with gradients that nobody meant.

Gradients are looked at when the backward passes between two steps of an optimizer begin. One that is cleared in any of
them is not kept: a rank may also compute gradients only to look at them. Ranks are compared where they hold replicas
(see `_tables`). If all ranks keep their gradients, these are reported if nothing has changed them since a step
when a loss adds to them: a program may scale gradients instead, or copy them from other parameters. The first step is
left out, and so is an optimizer that has cleared gradients once.

The loss of a model in `fully_shard` has gradients for whole parameters, which the optimizer does not have. So a shard
counts as a parameter of the loss if a leaf has the whole shape, and if the backward passes change what was kept. The
gradient of a shard may be zero though it was not cleared: it counts as cleared if it was changed in place.

Doubt: on a device, whether a gradient is zero may not be known yet. It counts as kept beside a rank that has no
gradient there, and if no rank has changed its gradients from the step to the only backward pass of the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from simdist.judges._bits import is_zero
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges.replicas._leaves import leaves_of
from simdist.judges.replicas._tables import Copy, Key, Optimized, Table, gradient_versions
from simdist.values import rank_text

__all__ = ["KeptGradients"]

_MOST_KEPT = 512  # steps that some ranks have still to take; a rank so far behind is left out


class _Left(Enum):
    """What is left of a gradient; absent ones are not recorded."""

    ZERO = "zero"
    KEPT = "kept"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _Since:
    """The gradients of an optimizer on one rank since its last step, as each backward pass found them."""

    optimized: Optimized
    step: int
    done: int = -1  # the last step that another one has followed
    looked: bool = False
    left: dict[Key, _Left] = field(default_factory=dict)  # empty if all were cleared
    left_by: int = -1  # the step after which they were left; a closure's backward pass belongs to the next one
    moment: Moment | None = None  # of the first backward pass, if anything was left
    versions: Sequence[int] = ()  # of gradients when the step ended; not kept after a clearing, except for shards
    never_cleared: str = ""  # a parameter to whose gradient of the step the first backward pass adds, or no name
    adds_to: int = -1  # the place of this parameter, if it is a shard
    clears: bool = False  # gradients were cleared once, or changed in another way
    where: str = ""  # of the last first backward pass
    sharded: bool = False  # some parameters are shards
    absent: set[Key] = field(default_factory=set)  # of shards that had no gradient in some step


@dataclass(frozen=True, slots=True)
class _Kept:
    """What one rank has kept after a step."""

    left: Mapping[Key, _Left]
    moment: Moment
    never_cleared: str


class KeptGradients:
    """Watches one world; `tables` has the parameters of its optimizers, by life and index of the optimizer.

    Hot if nothing is kept: a step must cost as little as possible.
    """

    def __init__(self, hearing: Hearing, tables: Mapping[tuple[int, int], Table]) -> None:
        self._hearing = hearing
        self._tables = tables
        self._since: dict[tuple[int, int], dict[int, _Since]] = {}  # by life and rank, then by optimizer
        # Steps after which some rank has kept gradients: by life, optimizer and step, then by rank.
        self._kept: dict[tuple[int, int, int], dict[int, _Kept]] = {}
        self._found = False
        hearing.listen(OptimizerStepped, self._on_step)
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(OptimizerBegins, self._on_begin)

    def _on_step(self, event: OptimizerStepped) -> None:
        process = event.process
        if event.number:
            since = self._since.get((process.life, process.rank), {}).get(event.index)
            if since is not None:
                since.step, since.looked = event.number, False
                if not since.clears or since.sharded:
                    _note_versions(since)
            return
        table = self._tables.get((process.life, event.index))
        optimized = None if table is None else table.ranks.get(process.rank)
        if optimized is not None:
            since = _Since(optimized, 0, sharded=any(copy.shards for copy in optimized.copies))
            if since.sharded:
                _note_versions(since)
            self._since.setdefault((process.life, process.rank), {})[event.index] = since

    def _on_backward(self, event: BackwardCalled) -> None:
        if self._found:
            return
        process = event.process
        for since in self._since.get((process.life, process.rank), {}).values():
            if not since.looked:
                since.looked, since.where = True, event.where
                for copy in since.optimized.copies:
                    if getattr(copy.tensor(), "grad", None) is not None:
                        self._look(since, event)
                        break
                else:
                    since.clears = True
            elif since.left:
                _look_again(since)

    def _look(self, since: _Since, event: BackwardCalled) -> None:
        """Note what is left of the gradients when the first backward pass after a step begins."""
        copies = since.optimized.copies
        since.left = {copy.key: left for copy in copies if (left := _left_of(copy)) is not None}
        since.left_by, since.moment = since.step, self._hearing.moment(event.process, event.where)
        since.never_cleared, since.adds_to = "", -1
        versions = gradient_versions(copies) if since.sharded or not since.clears else ()
        if since.sharded:
            for copy, old, new in zip(copies, since.versions, versions, strict=False):
                if copy.shards and old == new and since.left.get(copy.key) is _Left.ZERO:
                    since.left[copy.key] = _Left.UNKNOWN  # nobody has cleared it
        if not since.clears and since.step and since.versions == versions:
            # Kept while their identities are compared; the order of the parameters decides which is named.
            leaves = {id(leaf): leaf for leaf in leaves_of(event.tensors, event.edges)}
            whole = {leaf.shape for leaf in leaves.values()} if since.sharded else ()
            for place, copy in enumerate(copies):
                tensor = copy.tensor() if since.left.get(copy.key) in (_Left.KEPT, _Left.UNKNOWN) else None
                if tensor is None:
                    continue
                if id(tensor) in leaves or (copy.shards and tensor.shape in whole):
                    since.never_cleared = copy.name
                    since.adds_to = place if copy.shards else -1
                    break

    def _on_begin(self, event: OptimizerBegins) -> None:
        process = event.process
        since = self._since.get((process.life, process.rank), {}).get(event.index)
        if since is None:
            return
        since.done = since.step
        if since.left:
            left, since.left = since.left, {}
            is_kept = _Left.KEPT in left.values()
            place = since.adds_to
            if place >= 0 and gradient_versions(since.optimized.copies)[place] == since.versions[place]:
                since.never_cleared = ""  # the backward passes did not add to it
            may_be_kept = is_kept or _Left.UNKNOWN in left.values()
            if not may_be_kept or (since.left_by and not since.never_cleared):
                since.clears = True
            where = process.life, event.index, since.left_by
            is_noted = may_be_kept or _may_be_unknown(since)  # beside an unknown one, zeros are no lack of gradients
            if is_noted and (where in self._kept or len(self._kept) < _MOST_KEPT):
                assert since.moment is not None
                kept = _Kept(left, since.moment, since.never_cleared)
                self._kept.setdefault(where, {})[process.rank] = kept
        if self._kept:
            self._answer()

    def _answer(self) -> None:
        """Compare the ranks after steps that all of them have taken, and begun another."""
        for life, index, step in list(self._kept):
            table = self._tables.get((life, index))
            ranks = {} if table is None else table.ranks
            since = {rank: self._since.get((life, rank), {}).get(index) for rank in ranks}
            done = [rank for rank, each in since.items() if each is not None and each.done >= step]
            if table is not None and len(done) == self._hearing.world_size:
                kept = self._kept.pop((life, index, step))
                if not self._found:
                    self._compare(table, step, kept, {rank: each for rank, each in since.items() if each})

    def _compare(self, table: Table, step: int, kept: Mapping[int, _Kept], since: Mapping[int, _Since]) -> None:
        if len(kept) == self._hearing.world_size and all(each.never_cleared for each in kept.values()):
            first = kept[min(kept)]
            self._report(
                f"the gradient of {first.never_cleared} is never cleared: "
                f"the backward pass after optimizer step {step} adds to it",
                first,
                first.never_cleared,
                step,
            )
            return
        sets = [(key, ranks) for key, ranks in table.sets() if self._are_replicas(table, key, ranks)]
        shards = [(key, [rank for rank in ranks if key not in since[rank].absent]) for key, ranks in table.shards()]
        for key, ranks in sets + shards:
            left = {rank: kept[rank].left.get(key) if rank in kept else None for rank in ranks}
            unknown_counts = None in left.values()
            keeping = [
                rank for rank, each in left.items() if each is _Left.KEPT or (unknown_counts and each is _Left.UNKNOWN)
            ]
            clearing = [rank for rank, each in left.items() if each is None or each is _Left.ZERO]
            copy = table.ranks[ranks[0]].copy(key) if keeping and clearing else None
            if copy is not None:
                self._report(
                    f"the gradient of {copy.name} is kept after optimizer step {step}, "
                    f"and cleared on {rank_text(clearing)}",
                    kept[keeping[0]],
                    copy.name,
                    step,
                    against=since[clearing[0]].where,
                )
                return

    def _are_replicas(self, table: Table, key: Key, ranks: list[int]) -> bool:
        copy = table.ranks[ranks[0]].copy(key)
        return copy is not None and (copy.strict or table.are_replicas(key, ranks))

    def _report(self, problem: str, kept: _Kept, subject: str, step: int, against: str = "") -> None:
        self._found = True
        self._hearing.find(
            problem,
            kept.moment,
            subject=subject,
            step=step + 1,
            against=against,
            notes=["a backward pass adds to what is kept: every rank has to call zero_grad before"],
        )


def _note_versions(since: _Since) -> None:
    """Note the gradients when a step ends."""
    copies = since.optimized.copies
    since.versions = gradient_versions(copies)
    if -1 in since.versions:
        found = zip(copies, since.versions, strict=True)
        since.absent.update(copy.key for copy, version in found if copy.shards and version == -1)


def _look_again(since: _Since) -> None:
    """Note what was cleared before another backward pass for the same step."""
    for copy in since.optimized.copies:
        before = since.left.get(copy.key)
        if before in (_Left.KEPT, _Left.UNKNOWN):
            now = _left_of(copy) or _Left.ZERO
            if now is not _Left.KEPT:
                since.left[copy.key] = now  # what was unknown stays so: a backward pass has added to it
            if now is _Left.UNKNOWN or (before is _Left.UNKNOWN and not since.sharded):
                since.never_cleared = ""  # it may have been cleared in place


def _may_be_unknown(since: _Since) -> bool:
    """True if some rank may not know yet whether its gradients are zero."""
    copies = since.optimized.copies
    first = copies[0].tensor() if copies else None
    return since.sharded or (first is not None and first.is_cuda)


def _left_of(copy: Copy) -> _Left | None:
    gradient = getattr(copy.tensor(), "grad", None)
    if gradient is None:
        return None
    zero = is_zero(gradient)
    return _Left.UNKNOWN if zero is None else _Left.ZERO if zero else _Left.KEPT
