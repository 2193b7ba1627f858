"""The memory of a rank that an operation fills, and a verdict that changes it: the twin of `_read.py`.

The change is made when the operation has put its result there, and before any waiter learns of it: code that copies the
result to where the program wants it copies the changed one.
"""

from __future__ import annotations

import torch

from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload, Sparse
from simdist.c10d.calls._read import Change, put
from simdist.c10d.calls._table import FROM_ROOT, TO_ROOT
from simdist.c10d.calls._unseen import unseen

__all__ = ["change_filled", "filled_by"]


def filled_by(operation: Operation, payload: Payload, rank: int) -> list[torch.Tensor]:
    """The tensors that the operation fills on this rank; none where the rank only gives."""
    if payload is None or isinstance(payload, Sparse) or (operation.name in TO_ROOT and rank != operation.root):
        return []
    if isinstance(payload, torch.Tensor):
        return [] if operation.name in FROM_ROOT and rank == operation.root else [payload]
    filled = payload.filled
    return [filled] if isinstance(filled, torch.Tensor) else list(filled or ())


@unseen
def change_filled(change: Change, operation: Operation, payload: Payload, rank: int) -> None:
    """Replace the tensors that the operation has filled by what a verdict makes of them.

    Raises:
        SimdistError: the verdict returns tensors of other shapes.
    """
    put(change, filled_by(operation, payload, rank), f"the results of {operation.name}")
