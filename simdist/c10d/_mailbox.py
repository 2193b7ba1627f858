"""Point-to-point messages of one group: matching, and what becomes of them when an end is gone.

A send is a rendezvous at every size: it is done when the data has left, which is not before the receiver has posted.
Messages meet by (sender, receiver, tag), in order. A receive from any source takes the first send that is there. The
buffer is read when the message is matched. (Gloo's unbound buffers; facts measured on torch 2.13.)
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d import _numerics
from simdist.c10d._callsite import call_site, user_line
from simdist.c10d._flow import ABORTED
from simdist.c10d._profiling import profiled
from simdist.c10d._strict import check_unchanged, remember
from simdist.c10d._work import SimWork
from simdist.errors import MismatchError
from simdist.kernel import Timer

if TYPE_CHECKING:
    from simdist.c10d._communicator import Communicator, Member

__all__ = ["Mailbox", "P2PWork"]

_CHECKSUM_BYTES = 1 << 12


class P2PWork(SimWork):
    """A send or a receive. Its timeout runs from the moment it is waited for, as Gloo's does."""

    kind: str  # "send" or "recv"
    tensor: torch.Tensor
    timeout_ns: int
    posted_ns: int
    peer: int | None = None  # group rank; None: receive from any
    tag: Any = 0
    posted_checksum: int | None = None  # strict: of a send's buffer when it was issued
    site = ""  # strict: where
    expired = False  # it ran out of time
    timer: Timer | None = None  # of its end, once matched
    sender: P2PWork | None = None  # of a receive, once matched
    during: Callable[[], None] | None = None  # a fault's strike while its data is under way

    opaque = True

    def is_success(self) -> bool:
        """False only after it failed."""
        return self.error is None

    def describe(self) -> str:
        """As the deadlock report names it."""
        end = "dst" if self.kind == "send" else "src"
        peer = "any" if self.peer is None else self.peer
        return f"{self.kind}({end}={peer}, tag={self.tag}) in group {self.member.communicator.name!r}"

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Park until it is done; `timeout` replaces the group's.

        Raises:
            RuntimeError: it failed, or ran out of time; then all connections of the rank close.
        """
        self.process.torch_state.unwaited.pop(self, None)
        if not self.done:
            simulation = self.process.simulation
            simulation.check()
            limit_ns = round(timeout.total_seconds() * 1e9) or self.timeout_ns
            deadline_ns = simulation.now_ns + limit_ns if self.member.communicator.personality.has_timeouts else None
            while not self.done:
                if not simulation.park(self, deadline_ns) and not self.done:
                    self.member.communicator.mailbox.expire(self, limit_ns)
                self.process.drain()
        if self.error is not None:
            error = self.error
            if self.expired:  # whoever waits again meets the closed pair
                self.error = RuntimeError(self.member.communicator.personality.pair_closed())
            raise error
        return True


class Mailbox:
    """The unmatched sends and receives of a group, and those under way."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._sends: list[P2PWork] = []
        self._receives: list[P2PWork] = []
        self._flying: list[P2PWork] = []  # the receives whose data is under way
        self._free_ns: dict[tuple[int, int], int] = {}
        self._sequence: dict[int, int] = {}

    def post(
        self, member: Member, kind: str, peer: int | None, tag: Any, tensor: torch.Tensor, timeout_ns: int
    ) -> P2PWork:
        """A member sends to `peer`, or receives from it (None: from anyone).

        Raises:
            RuntimeError: the connection is closed.
        """
        communicator = self._communicator
        simulation = communicator.simulation
        process = member.process
        simulation.check()
        sequence = self._sequence.get(member.rank, 0)
        self._sequence[member.rank] = sequence + 1
        process.last_operation = (kind, sequence, communicator.name)
        strike = communicator.announce(member, kind, sequence) if simulation.bus.active else None
        process.operations += 1
        size = tensor.numel() * tensor.element_size()
        name = str(tensor.dtype).removeprefix("torch.")
        other = -1 if peer is None else peer
        simulation.events.add(
            (
                simulation.now_ns,
                "issue",
                process.rank,
                kind,
                communicator.name,
                sequence,
                size,
                name,
                tuple(tensor.shape),
                other,
                True,
            )
        )
        work = P2PWork.make(member, kind, sequence, [tensor])
        work.kind = kind
        profile = process.torch_state.profile
        if profile is not None:
            profiled(profile, work, "recvAnySource" if kind == "recv" and peer is None else kind, [tensor.shape])
        work.tensor = tensor
        work.timeout_ns = timeout_ns
        work.posted_ns = simulation.now_ns
        work.peer = peer
        work.tag = tag
        work.blockers = self
        if communicator.strict:
            remember(work)
            work.site = user_line(sys._getframe(1))
            if kind == "send":
                work.posted_checksum = _whole_checksum(tensor)
        if strike is not None:
            when, action = strike
            if when == "after":
                work.after = [action]
            else:
                work.during = action
        closed = communicator.closed_pair(member.rank, other) if peer is not None and communicator.troubled else None
        if closed is not None and closed[0] <= simulation.now_ns:
            self._report(work, RuntimeError(closed[1]))
            assert work.error is not None
            raise work.error
        if closed is not None:
            simulation.call_at(closed[0], self.on_closed)  # it does not know yet
        member.pending[work] = None
        (self._sends if kind == "send" else self._receives).append(work)
        self._match()
        return work

    @property
    def busy(self) -> bool:
        """True if anything is unmatched or under way."""
        return bool(self._sends or self._receives or self._flying)

    def blockers_of(self, rank: int) -> list[int]:
        """Group ranks that `rank` waits for."""
        for work in (*self._sends, *self._receives):
            if work.member.rank == rank and work.process.task is not None and work.process.task.waiting is work:
                if work.peer is not None:
                    return [work.peer]
                return [other for other in range(self._communicator.size) if other != rank]
        return []

    def expire(self, work: P2PWork, limit_ns: int) -> None:
        """A wait ran out of time: the work fails, and Gloo closes all connections of the rank."""
        communicator = self._communicator
        self._fail(work, communicator.personality.timed_out(work.kind, limit_ns))
        work.expired = True
        communicator.timed_out(work.member.rank)
        communicator.reconsider()

    def leave(self, member: Member) -> None:
        """A member is gone: what it has not sent yet will not come."""
        for work in [*self._sends, *self._receives]:
            if work.member is member:
                self._forget(work)
        for receive in list(self._flying):
            send = receive.sender
            if receive.member is member:
                self._forget(receive)
                if send is not None and not send.done and send.timer is not None:
                    send.timer.cancel()
                    self._sends.append(send)  # and waits for the connection to close
            elif send is not None and send.member is member and not send.done:
                for work in (send, receive):
                    if work.timer is not None:
                        work.timer.cancel()

    def on_closed(self) -> None:
        """Connections have closed: fail what was waiting on them."""
        communicator = self._communicator
        now = communicator.simulation.now_ns
        for work in [*self._sends, *self._receives, *self._flying]:
            if work.done:
                continue
            if work.member.left:
                self._forget(work)
            elif work.sender is not None and work.sender.done and work.sender.error is None:
                continue  # its data is on the way, and arrives
            elif work.peer is not None:
                closed = communicator.closed_pair(work.member.rank, work.peer)
                if closed is not None and closed[0] <= now:
                    self._fail(work, closed[1])

    def _match(self) -> None:
        for receive in list(self._receives):
            for send in self._sends:
                if (
                    send.peer == receive.member.rank
                    and receive.peer in (None, send.member.rank)
                    and send.tag == receive.tag
                ):
                    self._sends.remove(send)
                    self._receives.remove(receive)
                    self._transfer(send, receive)
                    break

    def _transfer(self, send: P2PWork, receive: P2PWork) -> None:
        communicator = self._communicator
        simulation = communicator.simulation
        source, target = send.member.rank, receive.member.rank
        receive.source = source
        receive.sender = send
        now = simulation.now_ns
        # The receiver tells the sender when it has posted; the data leaves when both are ready.
        start = max(now, receive.posted_ns + communicator.latency_ns(target, source, receive.posted_ns))
        opened = communicator.open_from_ns(source, target, start)
        self._flying.append(receive)
        if opened is None:
            return  # nothing gets through; both wait until they run out of time
        if communicator.strict and not self._fits(send, receive):
            return
        start = max(opened, self._free_ns.get((source, target), 0))
        size = send.tensor.numel() * send.tensor.element_size()
        sent = start + round(size * communicator.byte_ns(source, target))
        self._free_ns[source, target] = sent
        received = sent + communicator.latency_ns(source, target, start)
        send.timer = simulation.call_at(sent, lambda: self._sent(send, receive, start))
        receive.timer = simulation.call_at(received, lambda: self._received(receive, start))
        for work, end in ((send, sent), (receive, received)):
            if work.during is not None:
                simulation.call_at((now + end) // 2, work.during)

    def _fits(self, send: P2PWork, receive: P2PWork) -> bool:
        ours, theirs = send.tensor, receive.tensor
        if ours.numel() * ours.element_size() == theirs.numel() * theirs.element_size() and ours.dtype == theirs.dtype:
            return True
        lines = [f"a message from rank {send.process.rank} to rank {receive.process.rank} does not fit:"]
        for verb, work in (("sends", send), ("receives", receive)):
            tensor = work.tensor
            kind = str(tensor.dtype).removeprefix("torch.")
            site = call_site(work.process.task)
            lines.append(f"  rank {work.process.rank} {verb} {kind}{list(tensor.shape)}{site}")
        for work in (send, receive):
            self._forget(work)
            self._report(work, MismatchError("\n".join(lines)))
        return False

    def _sent(self, send: P2PWork, receive: P2PWork, begin_ns: int) -> None:
        # The sender may reuse its buffer from now on, so the data must have left it.
        changed = check_unchanged(send, _whole_checksum(send.tensor)) if self._communicator.strict else None
        if changed is not None:
            for work in (send, receive):
                self._forget(work)
                self._report(work, changed)
            return
        ours, theirs = _bytes(send.tensor), _bytes(receive.tensor)
        if len(ours) <= len(theirs):
            theirs[: len(ours)] = ours
        self._complete(send, begin_ns)

    def _received(self, receive: P2PWork, begin_ns: int) -> None:
        if receive in self._flying:
            self._flying.remove(receive)
        assert receive.sender is not None
        if len(_bytes(receive.sender.tensor)) > len(_bytes(receive.tensor)) and not receive.done:
            # More came than there is room for: the I/O thread takes the process with it.
            receive.process.stderr.append(ABORTED + "\n")
            receive.process.kill(signal.SIGABRT)
            return
        self._complete(receive, begin_ns)

    def _complete(self, work: P2PWork, begin_ns: int) -> None:
        if work.done or not work.process.running:
            return
        simulation = self._communicator.simulation
        crc = _numerics.checksum([_numerics.flat(work.tensor)], _CHECKSUM_BYTES)
        simulation.events.add(
            (
                simulation.now_ns,
                "complete",
                work.process.rank,
                work.name,
                self._communicator.name,
                work.sequence,
                begin_ns,
                crc,
            )
        )
        work.blockers = None
        work.member.pending.pop(work, None)
        work.finish()

    def _forget(self, work: P2PWork) -> None:
        for queue in (self._sends, self._receives, self._flying):
            if work in queue:
                queue.remove(work)
        if work.timer is not None:
            work.timer.cancel()
        work.member.pending.pop(work, None)
        work.blockers = None

    def _fail(self, work: P2PWork, text: str) -> None:
        self._forget(work)
        self._report(work, RuntimeError(text))

    def _report(self, work: P2PWork, error: BaseException) -> None:
        simulation = self._communicator.simulation
        simulation.events.add(
            (
                simulation.now_ns,
                "error",
                work.process.rank,
                work.name,
                self._communicator.name,
                work.sequence,
                type(error).__name__,
                str(error),
            )
        )
        work.fail(error)


def _whole_checksum(tensor: torch.Tensor) -> int:
    data = _numerics.flat(tensor)
    return _numerics.checksum([data], data.numel() * data.element_size())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    data = _numerics.flat(tensor)
    return data if data.dtype is torch.uint8 else data.view(torch.uint8)
