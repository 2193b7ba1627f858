"""Where the bytes of a call's tensors lie: what is sent of them, where what comes is put, and what follows a work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from simdist.c10d.surface import _memory
from simdist.c10d.surface._work import SimWork

__all__ = ["delivered", "put", "source", "targets", "then"]

Tensor = torch.Tensor
_flat = _memory.flat
_is_dense = _memory.is_dense


def source(tensor: Tensor) -> Tensor:
    """What is sent of a tensor: its memory, or a copy of its elements if they do not lie together."""
    return _flat(tensor if _is_dense(tensor) else tensor.contiguous())


def targets(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Flat memory for what is received; that of the tensors where it can be. See `delivered`."""
    return [_flat(tensor if _is_dense(tensor) else tensor.data.contiguous()) for tensor in tensors]


def delivered(work: SimWork, tensors: Sequence[Tensor], received: Sequence[Tensor]) -> SimWork:
    """The same work; it also brings what was received to the tensors that have no flat memory."""
    scattered = [pair for pair in zip(tensors, received, strict=True) if not _is_dense(pair[0])]

    def deliver() -> None:
        for tensor, data in scattered:
            put(tensor, data)

    return then(work, deliver) if scattered else work


def put(tensor: Tensor, data: Tensor) -> None:
    """Give a tensor the elements of flat `data`."""
    if tensor.is_complex():
        data = torch.view_as_complex(data.view(-1, 2))
    tensor.data.copy_(data.view(tensor.dtype).view(tensor.shape))


def then(work: SimWork, action: Callable[[], Any]) -> SimWork:
    """Do `action` when the work has succeeded, before anyone sees it done."""
    if work.done:
        if work.error is None:
            action()
        return work
    work.before = [action, *(work.before or ())]
    return work
