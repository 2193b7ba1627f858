"""The parameters that a loss is made of: what a program trains without an optimizer of torch, or beside it.

A program may change its parameters itself, or let an optimizer have only some of them: a share for each rank, or copies
with more bits. Then no step of an optimizer says when ranks are equal; the next backward pass does, for which all
copies of a model are meant to be the same.

Doubt: only the first loss is looked at. What a rank trains later with another one is known by its optimizer, or not at
all.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.judges._bits import bits_of_each, is_constant
from simdist.judges._replica_tables import Filled, Optimized

if TYPE_CHECKING:
    from torch import Tensor
    from torch.autograd.graph import GradientEdge, Node

__all__ = ["Leaves", "leaves_of"]

_ACCUMULATING = "torch::autograd::AccumulateGrad"  # a node that fills a leaf's gradient
_PATIENCE = 64  # passes that change nothing, after which the rank trains nothing beside its optimizers


@dataclass(slots=True)
class Leaves:
    """What the first loss of a rank was made of. `passes` counts how often the rank has gone backward since."""

    held: Optimized
    passes: int = 0
    settled: bool = False  # optimizers have all of them, or nothing changes them

    def tensors(self) -> list[Tensor | None]:
        """Those that still live."""
        return [copy.tensor() for copy in self.held.copies]

    def note_first_pass(self, filled: Filled) -> None:
        """Note the group that has reduced as many elements as all of them have, and which are no constants now."""
        tensors = self.tensors()
        _, group = filled.reducers(sum(tensor.numel() for tensor in tensors if tensor is not None))
        for copy, tensor in zip(self.held.copies, tensors, strict=True):
            copy.reduced = group
            copy.reporting = tensor is not None and not is_constant(tensor)

    def are_trained_beside(self, optimized: Container[int]) -> bool:
        """True if some are in no optimizer, of which `optimized` has the parameters' ids, and have changed."""
        beside = [
            (copy.first, tensor)
            for copy, tensor in zip(self.held.copies, self.tensors(), strict=True)
            if tensor is not None and id(tensor) not in optimized
        ]
        self.settled = not beside or self.passes >= _PATIENCE
        bits = bits_of_each([tensor for _, tensor in beside])
        return any(None not in (first, now) and first != now for (first, _), now in zip(beside, bits, strict=True))


def leaves_of(losses: Sequence[Tensor], edges: Sequence[GradientEdge] = ()) -> list[Tensor]:
    """The tensors that a backward pass from these gives gradients to, in the order in which their graph has them."""
    found: list[Tensor] = []
    nodes = [*(edge.node for edge in reversed(edges)), *(loss.grad_fn for loss in reversed(losses))]
    known: set[Node] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if node.name() == _ACCUMULATING:
            found.append(node.variable)  # type: ignore[attr-defined]  # of nodes of this kind
        nodes += [each for each, _ in reversed(node.next_functions)]
    return found
