"""Point-to-point messages of one group: matching, and what happens to them when an end is gone.

A send is a rendezvous at every size: it is done when the data has left, which is not before the receiver has posted.
Messages meet by (sender, receiver, tag), in order. A receive from any source takes the first send that its rank learns
of, a latency after the send was posted. (Gloo's unbound buffers; facts measured on torch 2.13.)

A message is *unmatched*, then *under way* (in `_under_way`, by its receive), then *sent* (its bytes are copied from one
tensor into the other, and the sender is done), then *received*. `Matching` has the first part; the rest is here, with
its disturbances: other flows on the same links, conditions of the network, ends that leave or run out of time.

Invariants:
- Between two ranks messages leave one after the other, in the order of matching; `_free_ns` is when the last of them
  has left. If one ends at another moment, so do those behind it: they are called off and planned anew together.
- A receive that is under way has a `sender`, and its moments (`left_ns` to `way_ns`) are those that its timers stand
  for; `left_ns` is None, and there are no timers, while nothing gets through.
- On a disturbed network messages between two ranks arrive in the order in which they leave, and so do a receiver's
  words that it has posted (`_words`): each direction is one connection.
- A message that has left arrives, even if its sender is gone by then; one that has not left as a whole does not.
- A work that is done, has failed or was forgotten is in no queue, has no live timer and no bytes on the wires.

Doubts: the bytes are copied when all of them have left, at one moment. A program that changes the tensor of a send
under way sends the late value whole, where a real one sends a part of each. A failed receive keeps what it held, where
a real one may have got a part.
"""

from __future__ import annotations

import functools
import signal
import zlib
from typing import TYPE_CHECKING

import torch

from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._read import change_read
from simdist.c10d.calls._work import WorkIssued
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.engine._matching import Matching
from simdist.c10d.engine._message import MessageRead, P2PWork
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.c10d.surface import _memory
from simdist.c10d.surface._callsite import call_site
from simdist.errors import MismatchError
from simdist.process import Strike, refusal_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from simdist.c10d.calls._member import Member
    from simdist.c10d.engine._communicator import Communicator
    from simdist.inside.python import SharedBytes

__all__ = ["Mailbox"]


class Mailbox:
    """The unmatched sends and receives of a group, and those under way."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._unmatched: Matching[P2PWork] = Matching()
        self._under_way: dict[P2PWork, None] = {}  # the receives whose data is under way, in the order of matching
        self._closings: dict[int, None] = {}  # the moments at which connections will be found closed; each has a timer
        self._free_ns: dict[tuple[int, int], int] = {}  # by (sender, receiver): when the last message has left
        # By (receiver, sender), on a disturbed network: when a receive was posted, and when its word arrives.
        self._words: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def post(
        self,
        member: Member,
        kind: str,
        peer: int | None,
        tag: Hashable,
        tensor: torch.Tensor,
        timeout_ns: int,
        *,
        inner: bool = False,
        strike: Strike | None = None,
    ) -> P2PWork:
        """Send to `peer`, or receive from it (None: from any rank); `strike` is what the announcement of the call left.

        `inner` messages are part of another operation: they are not reported.

        Raises:
            RuntimeError: the connection is closed.
        """
        communicator = self._communicator
        simulation = communicator.simulation
        member.require_caller()
        if not communicator.connected:
            member.connect()
        touch = simulation.policy.touch
        if touch is not None:
            touch(("mailbox", communicator.name, member.rank if kind == "recv" else peer), writes=True)
            touch("links", writes=tensor.nbytes * communicator.slowest()[1] >= LIGHT_NS)
        sequence = -1
        if not inner:
            if member.change is not None:
                change, member.change = member.change, None
                change_read(change, Operation(kind), tensor, member.rank)
            shape, to = tuple(tensor.shape), -1 if peer is None else peer
            sequence = member.post(kind, tensor.nbytes, _name_of(tensor.dtype), shape, to, tag)
        work = communicator.backend.completion.message.make(member, kind, sequence, [tensor])
        work.begin(kind, tensor, peer, tag, timeout_ns, simulation.now_ns, inner)
        work.blockers = self
        if simulation.bus.heard and simulation.bus.hears(WorkIssued):
            profiled = "recvAnySource" if kind == "recv" and peer is None else kind
            simulation.bus.report(WorkIssued(work, profiled, [tensor.shape], asynchronous=True))
        if strike is not None:
            when, action = strike
            if when == "after":
                work.after = [action]
            else:
                work.during = action
        closed = communicator.closed_pair(member.rank, peer) if peer is not None and communicator.troubled else None
        if closed is not None and closed[0] <= simulation.now_ns:
            self._report(work, RuntimeError(closed[1]))
            assert work.error is not None
            raise work.error
        if closed is not None:
            self._look_again_at(closed[0])  # the rank does not know yet
        member.pending[work] = None
        if kind == "send":
            assert peer is not None
            met = self._unmatched.send(work, member.rank, peer, tag)
            if met is not None:
                self._transfer(work, met)
            elif self._unmatched.awaits_any(peer, tag):
                self._hear(peer, tag)
        elif peer is None:
            self._unmatched.receive_from_any(work, member.rank, tag)
            self._hear(member.rank, tag)
        else:
            met = self._unmatched.receive(work, peer, member.rank, tag)
            if met is not None:
                self._transfer(met, work)
        return work

    def _heard_ns(self, send: P2PWork) -> int | None:
        """When the receiver learns that a send was posted; None if it cannot under the present conditions."""
        communicator = self._communicator
        assert send.peer is not None
        source, target = send.member.rank, send.peer
        left = communicator.open_from_ns(source, target, send.posted_ns)
        if left is None:
            return None
        latency_ns = communicator.latency_ns(source, target, left)
        if send.late_ns is None:
            send.late_ns = communicator.simulation.policy.extra_ns(latency_ns)
        return left + latency_ns + send.late_ns

    def _hear(self, target: int, tag: Hashable) -> None:
        """Match the sends that `target` knows of with the receives that wait for them; again when it learns of more.

        Called whenever that may have changed: a receive from any rank was posted, a send was while such a receive
        waits, or the network changed. Looks at each sender's first send, in the order in which `target` learns of them.
        """
        simulation = self._communicator.simulation
        while True:
            heard = []
            for send in self._unmatched.offered(target, tag):
                if self._unmatched.awaited(send.member.rank, target, tag):
                    heard_ns = self._heard_ns(send)
                    if heard_ns is not None:  # otherwise `target` does not learn of it until the network changes
                        heard.append((heard_ns, send.place, send))
            if not heard:
                return
            heard_ns, _, send = min(heard)
            if heard_ns > simulation.now_ns:
                simulation.call_at(heard_ns, functools.partial(self._hear, target, tag))
                return
            met = self._unmatched.hear(send.member.rank, target, tag)
            assert met is not None
            self._transfer(*met)

    @property
    def busy(self) -> bool:
        """True if anything is unmatched or under way."""
        return bool(self._unmatched or self._under_way)

    def blockers_of(self, rank: int) -> list[int]:
        """Group ranks that `rank` waits for."""
        member = self._communicator.members[rank]
        for task in () if member is None else member.process.tasks:
            work = task.waiting
            if isinstance(work, P2PWork) and work.place >= 0 and work.member is member:
                if work.peer is not None:
                    return [work.peer]
                return [other for other in range(self._communicator.size) if other != rank]
        return []

    def expire(self, work: P2PWork, limit_ns: int) -> None:
        """Fail a work whose wait ran out of time; Gloo then closes all connections of the rank."""
        communicator = self._communicator
        self._fail(work, communicator.backend.failure.timed_out(work.kind, limit_ns))
        work.expired = True
        communicator.timed_out(work.member.rank)
        communicator.look_again(work.member.rank)

    def leave(self, member: Member) -> None:
        """Forget a member that is gone: its unsent messages will not arrive."""
        communicator = self._communicator
        for work in list(member.pending):
            if isinstance(work, P2PWork) and work.place >= 0:
                self._forget(work)
        for receive in list(self._under_way):
            send = receive.sender
            if receive.member is member:
                self._forget(receive)
                if send is not None and not send.done and send.timer is not None:
                    send.timer.cancel()
                    # It waits for the connection to close.
                    self._unmatched.put_back(send, send.member.rank, member.rank, send.tag)
            elif send is not None and send.member is member and not send.done:
                for work in (send, receive):
                    if work.timer is not None:
                        work.timer.cancel()
                if receive.wire is not None:
                    communicator.network.withdraw(receive.wire)
                    receive.wire.release()
                    receive.wire = None

    def _look_again_at(self, time_ns: int) -> None:
        if time_ns not in self._closings:
            self._closings[time_ns] = None
            self._communicator.simulation.call_at(time_ns, self.on_closed)

    def on_closed(self) -> None:
        """Fail the messages whose connections have closed."""
        communicator = self._communicator
        now = communicator.simulation.now_ns
        self._closings.pop(now, None)
        for work in [*self._unmatched.sends(), *self._unmatched.receives(), *self._under_way]:
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

    def _transfer(self, send: P2PWork, receive: P2PWork) -> None:
        communicator = self._communicator
        simulation = communicator.simulation
        source, target = send.member.rank, receive.member.rank
        receive.source = source
        receive.sender = send
        now = simulation.now_ns
        # The receiver informs the sender when it has posted, or has learned of a send that it takes from any rank; the
        # data leaves when both are ready.
        known_ns = receive.posted_ns if receive.peer is not None else now
        word_ns = known_ns + communicator.latency_ns(target, source, known_ns)
        if communicator.disturbed:
            word_ns = self._behind_words((target, source), known_ns, word_ns)
        receive.ready_ns = max(now, word_ns)
        self._under_way[receive] = None
        if communicator.strict and not self._fits(send, receive):
            return
        self._let_go(send, receive)

    def _let_go(self, send: P2PWork, receive: P2PWork) -> None:
        """Let a matched message leave as soon as it can."""
        communicator = self._communicator
        simulation = communicator.simulation
        source, target = send.member.rank, receive.member.rank
        opened = communicator.open_from_ns(source, target, receive.ready_ns)
        receive.left_ns = None
        if opened is None:
            return  # nothing gets through; both wait until they run out of time
        start = max(opened, self._free_ns.get((source, target), 0))
        byte_ns = communicator.byte_ns(source, target)
        moved = sent = start + round(_size(send.tensor) * byte_ns)
        if communicator.disturbed:
            sent = communicator.through_ns(source, target, _size(send.tensor), start, moved)
        self._free_ns[source, target] = sent
        receive.left_ns, receive.sent_ns = start, sent
        receive.way_ns = communicator.latency_ns(source, target, start)
        if communicator.disturbed:
            receive.way_ns = self._way_behind_ns(receive)
        received = sent + receive.way_ns
        send.timer = simulation.call_at(sent, lambda: self._sent(send, receive, start))
        receive.timer = simulation.call_at(received, lambda: self._received(receive, start))
        for work, end in ((send, sent), (receive, received)):
            if work.during is not None:
                work.strike = simulation.call_at((simulation.now_ns + end) // 2, work.during)
        receive.wire = None
        if moved - start >= LIGHT_NS:
            receive.wire = communicator.network.begin(
                start,
                moved,
                byte_ns,
                lambda: communicator.message_load(source, target),
                lambda: self._move_end(send, receive),
            )

    def _way_behind_ns(self, receive: P2PWork) -> int:
        """The time that a message is on its way if it arrives behind those that leave before it."""
        way_ns = receive.way_ns
        for other in self._under_way:
            if other is receive:
                break
            if other.left_ns is not None and other.source == receive.source and other.member is receive.member:
                way_ns = max(way_ns, other.sent_ns + other.way_ns - receive.sent_ns)
        return way_ns

    def _behind_words(self, pair: tuple[int, int], posted_ns: int, word_ns: int) -> int:
        """When a receiver's word that it has posted arrives, behind its words of earlier posts."""
        now = self._communicator.simulation.now_ns
        words = [each for each in self._words.get(pair, ()) if each[1] > now]
        word_ns = max([word_ns, *(arrives_ns for other_ns, arrives_ns in words if other_ns <= posted_ns)])
        self._words[pair] = [*words, (posted_ns, word_ns)]
        return word_ns

    def _move_end(self, send: P2PWork, receive: P2PWork) -> None:
        """Move the end of a message and of those behind it: other flows have arrived at its links, or have left."""
        communicator = self._communicator
        simulation = communicator.simulation
        assert receive.left_ns is not None
        start, size = receive.left_ns, _size(send.tensor)
        pair = send.member.rank, receive.member.rank
        sent = start + round(size * communicator.byte_ns(*pair)) if receive.wire is None else receive.wire.end_ns
        if communicator.disturbed:
            sent = communicator.through_ns(*pair, size, start, sent)
        before_ns, receive.sent_ns = receive.sent_ns, sent
        if communicator.disturbed:
            receive.way_ns = communicator.latency_ns(*pair, start)
            receive.way_ns = self._way_behind_ns(receive)
        behind = [
            (other.sender, other)
            for other in self._under_way
            if other.sender is not None
            and not other.sender.member.left
            and (other.sender.member.rank, other.member.rank) == pair
            and other.left_ns is not None
            and other.left_ns >= before_ns
        ]
        if send.timer is not None and send.timer.action is not None:
            send.timer.cancel()
            send.timer = simulation.call_at(receive.sent_ns, lambda: self._sent(send, receive, start))
        if receive.timer is not None and receive.timer.action is not None:
            receive.timer.cancel()
            end_ns = receive.sent_ns + receive.way_ns
            receive.timer = simulation.call_at(end_ns, lambda: self._received(receive, start))
        self._free_ns[pair] = receive.sent_ns
        for other_send, other in behind:
            self._call_off(other_send, other)
        for other_send, other in behind:
            self._let_go(other_send, other)

    def _call_off(self, send: P2PWork, receive: P2PWork) -> None:
        """Cancel the planned times of a message that has not left yet."""
        for work in (send, receive):
            for timer in (work.timer, work.strike):
                if timer is not None:
                    timer.cancel()
        receive.left_ns = None
        if receive.wire is not None:
            self._communicator.network.withdraw(receive.wire)
            receive.wire.release()
            receive.wire = None

    def on_network(self) -> None:
        """Time the messages that have not left anew, in the same order: the network's conditions have changed."""
        now = self._communicator.simulation.now_ns
        staying = [
            (receive.sender, receive)
            for receive in self._under_way
            if (receive.left_ns is None or receive.left_ns > now)
            and receive.sender is not None
            and not receive.sender.member.left
        ]
        for send, receive in staying:
            self._call_off(send, receive)
            self._free_ns.pop((send.member.rank, receive.member.rank), None)
        for receive in list(self._under_way):
            if receive.left_ns is not None and receive.left_ns <= now and receive.sender is not None:
                pair = receive.sender.member.rank, receive.member.rank
                if receive.sent_ns > now and self._communicator.network.has_limits and not receive.sender.member.left:
                    self._move_end(receive.sender, receive)
                self._free_ns[pair] = max(self._free_ns.get(pair, 0), receive.sent_ns)
        for send, receive in staying:
            self._let_go(send, receive)
        for target, tag in dict.fromkeys((send.peer, send.tag) for send in self._unmatched.sends()):
            if target is not None:
                self._hear(target, tag)

    def _fits(self, send: P2PWork, receive: P2PWork) -> bool:
        ours, theirs = send.tensor, receive.tensor
        if ours.numel() * ours.element_size() == theirs.numel() * theirs.element_size() and ours.dtype == theirs.dtype:
            return True
        lines = [f"a message from rank {send.process.rank} to rank {receive.process.rank} does not fit:"]
        for verb, work in (("sends", send), ("receives", receive)):
            tensor = work.tensor
            kind = str(tensor.dtype).removeprefix("torch.")
            site = call_site(work.process.task_in(work))
            lines.append(f"  rank {work.process.rank} {verb} {kind}{list(tensor.shape)}{site}")
        for work in (send, receive):
            self._forget(work)
            self._report(work, MismatchError("\n".join(lines)))
        return False

    def _sent(self, send: P2PWork, receive: P2PWork, begin_ns: int) -> None:
        # The sender may reuse its buffer from now on, so the data must have left it.
        bus = self._communicator.simulation.bus
        error: BaseException | None = refusal_of(bus, MessageRead(send)) if bus.wants(MessageRead) else None
        error = error or _memory.freed_since([send.tensor, receive.tensor])
        if error is not None:
            for work in (send, receive):
                self._forget(work)
                self._report(work, error)
            return
        source, target = _memory.few_bytes(send.tensor), _memory.few_bytes(receive.tensor)
        if source is not None and target is not None and len(source) == len(target):
            target.raw = source.raw  # hot
        else:
            ours, theirs = _memory.as_bytes(send.tensor), _memory.as_bytes(receive.tensor)
            sent, room = ours.numel(), theirs.numel()  # hot: `len` of a tensor is Python
            if sent == room:
                theirs.copy_(ours)
            elif sent < room:
                theirs[:sent] = ours
        self._complete(send, begin_ns, 0, source)

    def _received(self, receive: P2PWork, begin_ns: int) -> None:
        self._under_way.pop(receive, None)
        if receive.wire is not None:
            receive.wire.release()
            receive.wire = None
        assert receive.sender is not None
        room, sent = _size(receive.tensor), _size(receive.sender.tensor)
        missing = room - sent
        if missing < 0 and not receive.done:
            # More data arrived than there is room for: the I/O thread aborts the process.
            self._communicator.unread[receive.member.rank, receive.sender.member.rank] = None
            receive.process.stderr.append(self._communicator.backend.failure.overrun(sent, room) + "\n")
            receive.process.kill(signal.SIGABRT)
            return
        self._complete(receive, begin_ns, missing, None)

    def _complete(self, work: P2PWork, begin_ns: int, missing: int, few: SharedBytes | bytes | None) -> None:
        """End a message's part; its tensor lacks `missing` bytes, and is `few` (from `few_bytes`) if not None."""
        if work.done or not work.process.running:
            return
        if not work.inner:
            if few is None and missing <= 0:
                few = _memory.few_bytes(work.tensor)
            if few is not None:
                crc = zlib.crc32(few)  # hot
            elif missing > 0:
                # The message was shorter than the tensor: the rest stays as it was.
                data = _memory.as_bytes(work.tensor)
                crc = _memory.checksum([data[: data.numel() - missing]], CHECKSUM_BYTES)
                work.partial = True
            else:
                crc = _memory.checksum([_memory.flat(work.tensor)], CHECKSUM_BYTES)
            source = work.peer if work.sender is None else work.sender.member.rank
            work.member.delivered(work.name, work.sequence, begin_ns, crc, source)
        work.blockers = None
        work.member.pending.pop(work, None)
        work.finish()

    def _forget(self, work: P2PWork) -> None:
        self._unmatched.withdraw(work)
        self._under_way.pop(work, None)
        if work.timer is not None:
            work.timer.cancel()
        if work.wire is not None:
            self._communicator.network.withdraw(work.wire)
            work.wire.release()
            work.wire = None
        work.member.pending.pop(work, None)
        work.blockers = None

    def _fail(self, work: P2PWork, text: str) -> None:
        self._forget(work)
        self._report(work, RuntimeError(text))

    def _report(self, work: P2PWork, error: BaseException) -> None:
        if not work.inner:
            work.member.failed(work.name, work.sequence, error)
        work.fail(error)


@functools.cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(tensor: torch.Tensor) -> int:
    return tensor.nbytes
