"""The bytes of a call's tensors: what is sent, where received data is put, and the actions after a work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from simdist.c10d.calls._payload import Outputs
from simdist.c10d.calls._work import SimWork
from simdist.c10d.surface import _memory

__all__ = ["delivered", "joint", "put", "source", "targets", "then"]

Tensor = torch.Tensor
_flat = _memory.flat


def source(tensor: Tensor) -> Tensor:
    """Return the data that is sent of a tensor: its elements in their logical order."""
    return _flat(tensor if tensor.is_contiguous() else tensor.contiguous())


def _is_direct(tensor: Tensor) -> bool:
    # Gloo receives into its own memory and copies: an output that autograd tracks refuses or records the copy.
    return tensor.is_contiguous() and not (tensor.requires_grad and torch.is_grad_enabled())


def targets(tensors: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """Return flat memory to receive into, and True if it is the tensors' own memory; otherwise see `delivered`."""
    watched = torch.is_grad_enabled()
    if type(tensors) is list and not (watched and any(tensor.requires_grad for tensor in tensors)):
        flats = _memory.flat_uniform(tensors)
        if flats is not None:
            return flats, True
    direct = [_is_direct(tensor) for tensor in tensors]
    pairs = zip(tensors, direct, strict=True)
    return [_flat(tensor if is_direct else _memory_like(tensor)) for tensor, is_direct in pairs], all(direct)


def _memory_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())  # a failed call restores the old


def delivered(work: SimWork, tensors: Sequence[Tensor], received: Sequence[Tensor], *, always: bool = False) -> SimWork:
    """Return the same work, which now also copies received data to tensors that it can't receive into directly.

    With `always`, it copies to all tensors.
    """
    copied = [pair for pair in zip(tensors, received, strict=True) if always or not _is_direct(pair[0])]
    if not copied:
        return work
    watched = torch.is_grad_enabled()

    def deliver() -> None:
        for tensor, data in copied:
            if watched and tensor.requires_grad:  # autograd sees nothing in inference mode, in which data may move
                with torch.inference_mode(mode=False), torch.enable_grad():
                    put(tensor, data)
            else:
                with torch.no_grad():
                    put(tensor, data)

    return then(work, deliver)


def put(tensor: Tensor, data: Tensor) -> None:
    """Give a tensor the elements of flat `data`, in their logical order."""
    if tensor.is_complex():
        data = torch.view_as_complex(data.view(-1, 2))
    tensor.copy_(data.view(tensor.dtype).view(tensor.shape))


def then(work: SimWork, action: Callable[[], object]) -> SimWork:
    """Do `action` when the work has succeeded, before it counts as done."""
    if work.done:
        if work.error is None:
            action()
        return work
    work.before = [action, *(work.before or ())]
    return work


def joint(works: list[SimWork], outputs: Outputs) -> SimWork:
    """Return one work that is done when all of `works` are, and fails with the first that fails."""
    joint = SimWork.make(works[-1].member, works[-1].name, works[-1].sequence, outputs)
    joint.parts = works
    left = [work for work in works if not work.done]
    joint.error = next((work.error for work in works if work.error is not None), None)  # some may have failed at once
    unwaited = joint.process.torch_state.unwaited
    for work in works:  # the caller waits for the joint work, and cannot wait for its parts
        if work in unwaited:
            unwaited[joint] = unwaited.pop(work)

    def settled(work: SimWork) -> None:
        left.remove(work)
        if joint.error is None:
            joint.error = work.error
        if not left:
            joint.finish()

    for work in left:
        work.after = [*(work.after or ()), functools.partial(settled, work)]
    if not left:
        joint.finish()
    joint.blockers = works[-1].blockers
    return joint
