"""The parameters of a loss, for programs that train parameters without an optimizer of torch.

A program may change its parameters itself, or give an optimizer only some of them: a share for each rank, or copies
with more bits. Then ranks need not be equal after an optimizer step, but they must be in the next backward pass, for
which all copies of a model are meant to be the same.

Doubt: only the first loss is followed. Parameters of later losses are only seen if they are in an optimizer.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.judges._bits import bits_of_each, is_constant
from simdist.judges.replicas._tables import Copy, Filled, Optimized

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import GradientEdge, Node

__all__ = ["Leaves", "leaves_of"]

_ACCUMULATING = "torch::autograd::AccumulateGrad"  # a node that fills a leaf's gradient
_PATIENCE = 64  # passes without a change, after which the rank counts as training nothing outside its optimizers


@dataclass(slots=True)
class Leaves:
    """The parameters of a rank's first loss. `passes` counts the rank's backward passes since then."""

    held: Optimized
    passes: int = 0
    settled: bool = False  # all are in optimizers, or nothing changes them

    def tensors(self) -> list[Tensor | None]:
        """Return the parameters; None for those that are gone."""
        return [copy.tensor() for copy in self.held.copies]

    def note_first_pass(self, filled: Filled) -> None:
        """Note the group that has reduced as many elements as there are, and which parameters are not constant now."""
        self.note_reduced(filled)
        for copy, tensor in zip(self.held.copies, self.tensors(), strict=True):
            copy.reporting = tensor is not None and not is_constant(tensor)

    def note_reduced(self, filled: Filled) -> None:
        """Note the group that has reduced as many elements as there are."""
        _, group = filled.reducers(sum(tensor.numel() for tensor in self.tensors() if tensor is not None))
        for copy in self.held.copies:
            copy.reduced = copy.reduced or group

    def are_trained_beside(self, optimized: Container[int]) -> bool:
        """True if some parameters have changed that are in no optimizer; `optimized` has the ids of those that are."""
        beside = [
            (copy.first, tensor)
            for copy, tensor in zip(self.held.copies, self.tensors(), strict=True)
            if tensor is not None and id(tensor) not in optimized
        ]
        self.settled = not beside or self.passes >= _PATIENCE
        bits = bits_of_each([tensor for _, tensor in beside])
        return any(None not in (first, now) and first != now for (first, _), now in zip(beside, bits, strict=True))

    def outside(self, optimized: Container[int]) -> list[Copy]:
        """Return the parameters that are in no optimizer, and whose gradients several ranks have reduced."""
        return [
            copy
            for copy in self.held.copies
            if copy.reduced is not None and not copy.constant and id(copy.tensor()) not in optimized
        ]

    def has_stepped(self, copies: Sequence[Copy], optimized: Container[int]) -> bool:
        """True if an optimizer of this rank has changed one of another rank's parameters, which began with its bits."""
        for copy in copies:
            mine = self.held.copy(copy.key)
            tensor = None if mine is None else mine.tensor()
            if mine is None or tensor is None or id(tensor) not in optimized:
                continue
            now = bits_of_each([tensor])[0]
            alike = (mine.shape, mine.dtype, mine.first) == (copy.shape, copy.dtype, copy.first)
            if alike and mine.reduced is copy.reduced and None not in (mine.first, now) and now != mine.first:
                return True
        return False


def leaves_of(losses: Sequence[Tensor], edges: Sequence[GradientEdge] = ()) -> list[Tensor]:
    """Return the tensors that get gradients from a backward pass, in the order of their graph."""
    found: list[Tensor] = []
    nodes = [*(edge.node for edge in reversed(edges)), *(loss.grad_fn for loss in reversed(losses))]
    known: set[Node] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        # Functions of the user may keep a `name` of their own in their node.
        if type(node).name(node) == _ACCUMULATING:
            found.append(node.variable)  # type: ignore[attr-defined]  # of nodes of this kind
        nodes += [each for each, _ in reversed(node.next_functions)]
    return found
