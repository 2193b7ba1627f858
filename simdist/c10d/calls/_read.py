"""What an operation reads of a rank's memory, and a verdict that changes it.

In doubt: the change is made where the operation reads. That is the program's own tensor, unless a copy had to be made
of it (one that is not contiguous, several that are sent as one), as if memory had changed, or what was copied.
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
"""What a verdict makes of the tensors that an operation reads, or of those that it has filled."""


def read_by(operation: Operation, payload: Payload, rank: int) -> list[torch.Tensor]:
    """The tensors that the operation reads of this rank; none for what it only receives."""
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
    """Put what a verdict makes of them in the place of the tensors that the operation is about to read.

    Raises:
        SimdistError: the verdict makes other tensors of them than there are.
    """
    put(change, read_by(operation, payload, rank), f"the tensors of {operation.name}")


def put(change: Change, tensors: list[torch.Tensor], what: str) -> None:
    """Put what a verdict makes of tensors in their place.

    Raises:
        SimdistError: the verdict makes other tensors of `what` than there are.
    """
    changed = change(tensors)
    if [each.shape for each in changed] != [each.shape for each in tensors]:
        raise SimdistError(f"a judge makes other shapes of {what}; they must stay as they are")
    with torch.no_grad():
        for tensor, new in zip(tensors, changed, strict=True):
            if new is not tensor:
                tensor.copy_(new)
