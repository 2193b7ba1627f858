"""Losses that are summed over the ranks and divided by their number, and then trained with, in DDP.

The sum is in place and leaves the graph as it was, the division becomes part of the graph. So the gradients are those
of the rank's own loss, divided by the number of ranks, and DDP averages them as well: the training goes on with another
learning rate. The copies stay equal. A program that wants the average for its log has to reduce a detached copy.

Without DDP the program may rely on the division: it sums gradients itself. A division in a step of several backward
passes may belong to the accumulation of gradients, whose number may be that of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simdist.c10d import WorkIssued
from simdist.inside.torch import factor_of, number_of_node
from simdist.judges._events import BackwardCalled, OptimizerBegins
from simdist.judges._judge import Hearing, Moment
from simdist.judges._models import WrappedModel
from simdist.judges.replicas import leaves_of

if TYPE_CHECKING:
    from torch import Tensor

    from simdist.c10d.engine import Communicator
    from simdist.process import SimProcess

__all__ = ["ScaledLosses"]

_DEEP = 8  # operations between a sum and the loss that a backward pass is given
_MOST = 64  # sums since the last backward pass


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum, in place, of the result of a node in the graph."""

    group: Communicator
    what: str


@dataclass(slots=True)
class _Rank:
    sums: dict[int, _Sum] = field(default_factory=dict)  # since the last backward pass, by the node's number
    passes: int = 0  # since the last step
    divided: tuple[_Sum, Moment] | None = None  # the loss of the first backward pass since the last step


class ScaledLosses:
    """Watches one world; `on_reduction` must be called for each sum of a tensor that has a graph.

    Nothing is watched before the first of these: most programs have none.
    """

    def __init__(self, hearing: Hearing, models_of: Callable[[SimProcess], Sequence[WrappedModel]]) -> None:
        self._hearing = hearing
        self._models_of = models_of
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        self._found = False

    def on_reduction(self, event: WorkIssued, tensor: Tensor, moment: Moment) -> None:
        """Note that a rank's program sums a tensor with a graph."""
        work = event.work
        group = work.member.communicator
        node = tensor.grad_fn
        if node is None or self._found or event.reduction != "sum" or group.size == 1 or tensor.numel() != 1:
            return
        if not self._ranks:
            self._hearing.listen(BackwardCalled, self._on_backward)
            self._hearing.listen(OptimizerBegins, self._on_step)
        rank = self._ranks.setdefault((work.process.life, work.process.rank), _Rank())
        if len(rank.sums) < _MOST:
            rank.sums[number_of_node(node)] = _Sum(group, f"{work.describe()} ({moment.where})")

    def _on_backward(self, event: BackwardCalled) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is None or self._found:
            return
        rank.passes += 1
        sums, rank.sums = rank.sums, {}
        if not sums or rank.passes > 1:
            return
        for loss in event.tensors:
            found = _divided_sum(loss.grad_fn, sums)
            if found is not None and self._is_averaged(event, found):
                rank.divided = found, self._hearing.moment(process, event.where)
                return

    def _is_averaged(self, event: BackwardCalled, found: _Sum) -> bool:
        """True if DDP averages the gradients of a loss over the ranks of its sum."""
        ranks = tuple(-1 if member is None else member.process.rank for member in found.group.members)
        models = [each for each in self._models_of(event.process) if each.ranks == ranks and each.averages()]
        leaves = leaves_of(event.tensors, event.edges) if models else ()
        return any(model.name_of(leaf) is not None for model in models for leaf in leaves)

    def _on_step(self, event: OptimizerBegins) -> None:
        rank = self._ranks.get((event.process.life, event.process.rank))
        if rank is None:
            return
        passes, rank.passes = rank.passes, 0
        divided, rank.divided = rank.divided, None
        if divided is None or passes > 1 or self._found:
            return
        self._found = True
        found, moment = divided
        size = found.group.size
        self._hearing.find(
            f"the gradients are {size} times too small: the loss is summed by {found.what} and divided by {size}, and "
            "DistributedDataParallel averages its gradients",
            moment,
            subject="loss",
            step=event.number,
            notes=["the sum does not change gradients, and the division does; sum a detached copy of the loss"],
        )


def _divided_sum(node: Any, sums: dict[int, _Sum]) -> _Sum | None:
    """Return the sum from which a loss is computed, if the loss is that sum divided by the number of ranks."""
    factors: list[float] = []
    for _ in range(_DEEP):
        if node is None:
            return None
        found = sums.get(number_of_node(node))
        if found is not None:
            size = found.group.size
            divisions = sum(abs(each * size - 1) < 1e-6 for each in factors)
            return found if divisions > factors.count(size) else None
        factor = factor_of(node)
        if factor is not None:
            factors.append(factor)
        before = [each for each, _ in node.next_functions if each is not None]
        node = before[0] if len(before) == 1 else None
    return None
