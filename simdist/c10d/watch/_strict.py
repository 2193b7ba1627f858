"""Calls that Gloo accepts silently and a strict group refuses, with the line of code that made them.

Strided tensors (Gloo reduces the wrong memory), a NaN that a maximum or minimum may drop, a buffer that changes between
`isend` and the moment it is read, work that is never waited for, messages without a partner, groups left open.
Disagreements between ranks are found where calls meet (`_collective`, `_mailbox`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from simdist.c10d.calls import MESSAGES
from simdist.c10d.calls._events import OperationAdmitted
from simdist.c10d.calls._work import WorkIssued
from simdist.c10d.engine import P2PWork
from simdist.c10d.engine._message import MessageRead
from simdist.c10d.surface._callsite import issued_by_torch
from simdist.c10d.surface._memory import checksum, flat
from simdist.errors import StrictError
from simdist.frames import user_line
from simdist.kernel import PASS, Bus, Verdict
from simdist.process import SimProcess

__all__ = ["problems_at_end", "watch_strictly"]


def watch_strictly(bus: Bus) -> None:
    """Make all groups of a world strict: refuse calls that Gloo would misread, and changed buffers of sends."""
    bus.intercept(OperationAdmitted, _on_admission)
    bus.listen(WorkIssued, _on_issue)
    bus.intercept(MessageRead, _on_read)


def _on_admission(event: OperationAdmitted) -> Verdict:
    """Refuse a call whose tensors have gaps in memory, or hold a NaN that the reduction may drop."""
    name, reduction = event.operation, event.reduction
    site = user_line(sys._getframe(1))
    for tensor in _flattened(event.tensors):
        if tensor.layout is torch.strided and not _is_dense(tensor):
            return Verdict(
                error=StrictError(
                    f"{name}: a tensor of shape {list(tensor.shape)} with strides {list(tensor.stride())} "
                    f"has gaps in memory; "
                    f"Gloo would work on the first {tensor.numel()} elements of its storage{site}; use .contiguous()"
                )
            )
    for tensor in _flattened(event.operands) if reduction in ("max", "min") else ():
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            return Verdict(
                error=StrictError(
                    f"{name}({reduction}): the tensor holds a NaN, "
                    f"which Gloo keeps or drops depending on the rank{site}"
                )
            )
    return PASS


def _on_issue(event: WorkIssued) -> None:
    """Note the call's site and a send's checksum: an asynchronous call must be waited for, unless torch issued it."""
    work = event.work
    if isinstance(work, P2PWork) and work.name == "send":
        work.posted_checksum = _checksum(work)
    if event.asynchronous:
        caller = sys._getframe(1)
        work.site = user_line(caller)
        if not issued_by_torch(caller):
            work.process.torch_state.unwaited[work] = work.site


def _on_read(event: MessageRead) -> Verdict:
    """Refuse a message whose buffer has changed since the send."""
    work = event.send
    if work.posted_checksum in (None, _checksum(work)):
        return PASS
    return Verdict(
        error=StrictError(
            f"rank {work.process.rank} changed the tensor of its {work.describe()}, issued{work.site}, "
            "before the receiver was there; the receiver would get the new values"
        )
    )


def _checksum(work: P2PWork) -> int:
    data = flat(work.tensor)
    return checksum([data], data.numel() * data.element_size())


def problems_at_end(process: SimProcess) -> list[str]:
    """Return one line for everything that a rank has left undone when its program ends without an error."""
    state = process.torch_state
    lines = [f"no rank waited for {work.describe()}, issued{site}" for work, site in state.unwaited.items()]
    for group in list(state.world.pg_map):
        member = group._member
        lines += [
            f"{work.describe()} never met its partner"
            for work in member.pending
            if not work.done and work.name in MESSAGES
        ]
    lines += [f"group {group.group_name!r} was never destroyed" for group in state.world.pg_map]
    return lines


def _flattened(tensors: object) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    elif isinstance(tensors, list | tuple):
        for tensor in tensors:
            yield from _flattened(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill their memory without gaps or overlaps, in any order."""
    if tensor.numel() == 0 or tensor.is_contiguous():
        return True
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel()
