"""The work of a send or a receive, which its rank waits for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import torch

from simdist.c10d.calls._work import SimWork, WorkWaited
from simdist.cluster import Flow
from simdist.kernel import Timer

__all__ = ["MessageRead", "P2PWork"]


@dataclass(frozen=True, slots=True)
class MessageRead:
    """Announced: the buffer of a send is about to be read for the receiver. It can only be refused."""

    send: P2PWork


class P2PWork(SimWork):
    """A send or a receive. Its timeout starts when a wait for it begins.

    `Mailbox` moves it: it is posted, matched, under way, and done or failed. `Mailbox` writes the attributes that are
    set "once matched". From the match on, a receive stands for the whole message and knows its `sender`; the send does
    not know its receive.
    """

    __slots__ = (
        "during",
        "expired",
        "inner",
        "kind",
        "late_ns",
        "left_ns",
        "peer",
        "place",
        "posted_checksum",
        "posted_ns",
        "ready_ns",
        "sender",
        "sent_ns",
        "spent",
        "strike",
        "tag",
        "tensor",
        "timeout_ns",
        "timer",
        "waited",
        "way_ns",
        "wire",
    )

    kind: str  # "send" or "recv"
    tensor: torch.Tensor  # read when its data has left, or written then
    timeout_ns: int  # the group's, unless a wait has another one
    posted_ns: int
    place: int  # among the unmatched of its group, in the order of posting; -1: matched or withdrawn
    peer: int | None  # group rank; None: receive from any rank, also once it is matched
    tag: Hashable  # messages meet if theirs are equal
    late_ns: int | None  # of a send that a receive from any may take: extra delay until it is known; None: not drawn
    posted_checksum: int | None  # of a send's buffer when it was issued, if a listener has noted it
    expired: bool  # it ran out of time
    inner: bool  # a message inside an operation, which is reported instead
    waited: bool  # a wait has ended, with or without an error
    spent: bool  # it succeeded, and a wait for it has ended
    timer: Timer | None  # of its end, once matched
    strike: Timer | None  # of `during`
    ready_ns: int  # of a receive, once matched: both ends are ready
    left_ns: int | None  # likewise: when the data leaves; None: it cannot under the present conditions
    sent_ns: int  # likewise: all of it has left
    way_ns: int  # likewise: the time from then on until it has arrived
    wire: Flow | None  # likewise: its bytes on the network, if it has any
    sender: P2PWork | None  # of a receive, once matched
    during: Callable[[], None] | None  # a fault's strike while its data is under way

    always_opaque: ClassVar[bool] = False  # it has neither a future nor a result

    def begin(
        self,
        kind: str,
        tensor: torch.Tensor,
        peer: int | None,
        tag: Hashable,
        timeout_ns: int,
        posted_ns: int,
        inner: bool,
    ) -> None:
        """Set its fields when it is posted, still unmatched."""
        self.kind = kind
        self.tensor = tensor
        self.peer = peer
        self.tag = tag
        self.timeout_ns = timeout_ns
        self.posted_ns = posted_ns
        self.inner = inner
        self.opaque = self.always_opaque
        self.place = -1
        self.expired = self.waited = self.spent = False
        self.ready_ns = self.sent_ns = self.way_ns = 0
        self.posted_checksum = self.left_ns = self.late_ns = None
        self.timer = self.strike = self.wire = self.sender = self.during = None

    def is_success(self) -> bool:
        """False only after it failed."""
        return self.error is None

    def describe(self) -> str:
        """Its name in the deadlock report."""
        end = "dst" if self.kind == "send" else "src"
        peer = "any" if self.peer is None else self.peer
        return f"{self.kind}({end}={peer}, tag={self.tag}) in group {self.member.communicator.name!r}"

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Park until it is done; `timeout` replaces the group's.

        Raises:
            RuntimeError: it failed, or ran out of time; then all connections of the rank close.
        """
        self.process.torch_state.unwaited.pop(self, None)
        communicator = self.member.communicator
        limit_ns = round(timeout.total_seconds() * 1e9) or self.timeout_ns
        if self.spent:
            self.wait_again(limit_ns)
        if not self.done:
            simulation = self.process.simulation
            simulation.check()
            failure = communicator.backend.failure
            deadline_ns = simulation.now_ns + limit_ns + failure.late_ns if failure.has_timeouts else None
            while not self.done:
                if not simulation.park(self, deadline_ns) and not self.done:
                    communicator.mailbox.expire(self, limit_ns)
                self.process.drain()
        self.waited = True
        bus = self.process.simulation.bus
        if bus.hears(WorkWaited) and not self.inner:
            bus.report(WorkWaited(self))
        if self.process.between:
            self.process.do_between()
        if self.error is not None:
            error = self.error
            if self.expired:  # a second wait finds the pair closed
                self.error = RuntimeError(communicator.backend.failure.pair_closed())
            raise error
        self.spent = True
        return True

    def wait_again(self, limit_ns: int) -> None:
        """Wait again after a success: returns at once, unless a backend overrides this."""
