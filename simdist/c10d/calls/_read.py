"""The memory of a rank that an operation reads, and a verdict that changes it.

Doubt: the change is made where the operation reads. That is the program's own tensor, as if its memory had changed, or
a copy if one had to be made (of a tensor that is not contiguous, of several that are sent as one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from simdist.c10d.calls import FROM_ROOT, SILENT
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload, Sparse
from simdist.c10d.calls._unseen import unseen
from simdist.errors import SimdistError

__all__ = ["Change", "change_read", "put", "read_by"]

Change: TypeAlias = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""A verdict's function: from the tensors that an operation reads, or has filled, to those that replace them."""


def read_by(operation: Operation, payload: Payload, rank: int) -> list[torch.Tensor]:
    """The tensors that the operation reads on this rank; none where the rank only receives."""
    if operation.name in SILENT or (operation.name in FROM_ROOT and rank != operation.root):
        return []
    if payload is None or isinstance(payload, torch.Tensor):
        return [] if payload is None else [payload]
    if isinstance(payload, Sparse):
        return [payload.given.values()]
    given = payload.given
    return [given] if isinstance(given, torch.Tensor) else list(given or ())


@unseen
def change_read(change: Change, operation: Operation, payload: Payload, rank: int) -> None:
    """Replace the tensors that the operation is about to read by what a verdict makes of them.

    Raises:
        SimdistError: the verdict returns tensors of other shapes.
    """
    put(change, read_by(operation, payload, rank), f"the tensors of {operation.name}")


def put(change: Change, tensors: list[torch.Tensor], what: str) -> None:
    """Replace tensors by what a verdict makes of them.

    Raises:
        SimdistError: the verdict returns tensors of other shapes than those of `what`.
    """
    changed = change(tensors)
    if [each.shape for each in changed] != [each.shape for each in tensors]:
        raise SimdistError(f"a judge makes other shapes of {what}; they must stay as they are")
    with torch.no_grad():
        for tensor, new in zip(tensors, changed, strict=True):
            if new is not tensor:
                tensor.copy_(new)
