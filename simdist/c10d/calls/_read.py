"""What an operation reads of a rank's memory, and a verdict that changes it.

In doubt: the change is made where the operation reads. That is the program's own tensor, unless a copy had to be made
of it (one that is not contiguous, several that are sent as one), as if memory had changed, or what was copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.calls import SILENT, names_where
from simdist.c10d.calls._unseen import unseen
from simdist.errors import SimdistError

if TYPE_CHECKING:
    from simdist.c10d.calls._operation import Operation

__all__ = ["change_read", "read_by"]

_FROM_ROOT = names_where(lambda row: row.root == "gives")


def read_by(operation: Operation, inputs: Any, rank: int) -> list[torch.Tensor]:
    """The tensors that the operation reads of this rank; none for what it only receives.

    `inputs` is what the data plane wants from it: a tensor, or a pair of what is filled and what is read.
    """
    if operation.name in SILENT or (operation.name in _FROM_ROOT and rank != operation.root):
        return []
    read = inputs[1] if isinstance(inputs, tuple) else inputs
    if operation.name == "sparse_all_reduce":
        read = read.values()
    return list(read) if isinstance(read, list | tuple) else [read]


@unseen
def change_read(change: Callable[[Any], Any], operation: Operation, inputs: Any, rank: int) -> None:
    """Put what a verdict makes of them in the place of the tensors that the operation is about to read.

    Raises:
        SimdistError: the verdict makes other tensors of them than there are.
    """
    tensors = read_by(operation, inputs, rank)
    changed = change(tensors)
    if [each.shape for each in changed] != [each.shape for each in tensors]:
        raise SimdistError(f"a judge makes other shapes of the tensors of {operation.name}; they must stay as they are")
    with torch.no_grad():
        for tensor, new in zip(tensors, changed, strict=True):
            if new is not tensor:
                tensor.copy_(new)
