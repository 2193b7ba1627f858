"""Groups whose payloads stay where they are: `simdist.run(..., values="shapes")`.

Calls are matched, checked, timed, struck by faults and recorded as always; only large payloads of floating-point
numbers are not folded, copied and summed up. Data by which ranks count and agree is moved as always: see `is_moved`.

A world picks these classes when it makes a group, so that other worlds pay nothing for them.

Doubts: a rank's output may be memory that was never written. So floating-point numbers add nothing to the digest, even
if they are moved; integers that a program computes from them still can. On NCCL, mismatched calls do to the bytes
what the kernels do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload
from simdist.c10d.calls._work import CollectiveRead
from simdist.c10d.engine._collective import Arrival, Collective
from simdist.c10d.engine._communicator import Communicator
from simdist.c10d.engine._hand_over import HandOver
from simdist.c10d.engine._mailbox import Mailbox
from simdist.c10d.engine._message import MessageRead, P2PWork
from simdist.c10d.surface import _memory
from simdist.process import refusal_of

if TYPE_CHECKING:
    from simdist.inside.python import SharedBytes

__all__ = ["SMALL_BYTES", "UnmovedCommunicator", "emptied", "is_floating", "is_message_moved", "is_moved"]

SMALL_BYTES = 4096
"""A payload of at most this many bytes a rank is always moved, since it may be a loss, a norm or a flag."""

_NUMBERS = ("float", "bfloat", "complex")  # prefixes of the names of their types


def is_moved(operation: Operation) -> bool:
    """True if the payload of a collective is moved.

    It is if it is not floating-point numbers, or if it is small. Floating-point numbers of an all_to_all are never
    moved, since its ranks may send different amounts. Several tensors that are gathered at once are moved, since they
    pass through memory that holds nothing before.
    """
    if not is_floating(operation):
        return True
    if operation.name == "all_to_all":
        return False
    return operation.size <= SMALL_BYTES or (operation.name == "all_gather" and operation.extra is not None)


def is_floating(operation: Operation) -> bool:
    """True if its payload is floating-point numbers."""
    return operation.dtype_name.startswith(_NUMBERS)


def is_message_moved(send: torch.Tensor, receive: torch.Tensor) -> bool:
    """True if a message between these two is moved."""
    return (
        not (_has_numbers(send) and _has_numbers(receive))
        or send.nbytes <= SMALL_BYTES
        or receive.nbytes <= SMALL_BYTES
    )


def _has_numbers(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def emptied(payload: Any) -> Any:
    """The same payload with tensors that have no elements."""
    if isinstance(payload, torch.Tensor):
        return torch.empty(0, dtype=payload.dtype)
    if isinstance(payload, list):
        return [emptied(each) for each in payload]
    return type(payload)(*map(emptied, payload)) if isinstance(payload, tuple) else payload


class UnmovedCommunicator(Communicator):
    """A group over Gloo, or one like it."""

    def payloads(self, arrivals: Mapping[int, Arrival], operation: Operation) -> list[Payload]:
        """The payloads; empty ones if they are not moved."""
        payloads = super().payloads(arrivals, operation)
        return payloads if is_moved(operation) else emptied(payloads)

    def hand_over(self, collective: Collective) -> HandOver:
        """Return the object that gives ranks their bytes in a collective that is followed."""
        return _UnmovedHandOver(collective)

    def make_mailbox(self) -> Mailbox:
        """Return the mailbox in which the group's messages meet."""
        return _UnmovedMailbox(self)

    def note_completed(self, operation: Operation, sequence: int, begin_ns: int, crc: int) -> None:
        """Record a collective, without a checksum of floating-point numbers."""
        super().note_completed(operation, sequence, begin_ns, 0 if is_floating(operation) else crc)


class _UnmovedHandOver(HandOver):
    """Gives ranks no payloads that are not moved."""

    __slots__ = ()

    @property
    def _moves(self) -> bool:
        return all(is_moved(arrival.operation) for arrival in self._collective.arrivals.values())

    def decide(self, wanted: bool) -> None:
        """Decide whether to follow the bytes; those that are not moved are not followed."""
        if self._moves:
            super().decide(wanted)

    def finish(self, rank: int) -> int:
        """Give a rank that is done its result."""
        collective = self._collective
        if self._moves:
            crc = super().finish(rank)
            return 0 if is_floating(collective.arrivals[rank].operation) else crc
        communicator = collective.communicator
        bus = communicator.simulation.bus
        if self._executed is None and len(collective.arrivals) == communicator.size and bus.hears(CollectiveRead):
            bus.report(CollectiveRead([arrival.work for arrival in collective.arrivals.values()]))
        self._executed = 0
        return 0

    def leave_partial(self, rank: int) -> None:
        """Let a rank whose part failed keep its old data, if the payload is not moved."""
        if self._moves:
            super().leave_partial(rank)


class _UnmovedMailbox(Mailbox):
    """Delivers messages without their content."""

    def _sent(self, send: P2PWork, receive: P2PWork, begin_ns: int) -> None:
        if is_message_moved(send.tensor, receive.tensor):
            super()._sent(send, receive, begin_ns)
            return
        bus = self._communicator.simulation.bus
        error: BaseException | None = refusal_of(bus, MessageRead(send)) if bus.wants(MessageRead) else None
        error = error or _memory.freed_since([send.tensor, receive.tensor])
        if error is None:
            self._complete(send, begin_ns, 0, b"")
            return
        for work in (send, receive):
            self._forget(work)
            self._report(work, error)

    def _complete(self, work: P2PWork, begin_ns: int, missing: int, few: SharedBytes | bytes | None) -> None:
        super()._complete(work, begin_ns, missing, b"" if _has_numbers(work.tensor) else few)
