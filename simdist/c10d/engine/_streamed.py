"""Operations that end on streams: what the members of a group share whose backend orders its work on devices.

A group makes *connections*: of all members, or of two. A rank's call is a `Part` of something: of a collective, which
its n-th call on a connection meets the n-th of every other; or of a message, which meets the first one of the other end
that waits. A part begins when the stream that it was given to has come there, and the whole when all parts have. Then
the bytes move at once, and the time that they take passes on the streams: each part has a mark at which it ends.

Nothing is compared between ranks, no part of the others ends when one is missing, and nobody sees that a peer is gone:
whoever waits waits, until its backend's watchdog or the program makes an end of it.

Invariants:
- A part is either not begun, and its memory is claimed; or begun, and its bytes have moved; or lost, and never ends.
- What is lost stays lost: a collective one of whose ranks is gone, or has aborted the connection, before it ended.
- A rank parks here only where it joins a connection, and where it touches memory that a part has claimed.

Doubts: bytes move at the beginning, so a program that changes an input while the operation runs is not seen to. A
broadcast, gather or scatter takes all ranks, where real ones may let some go.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from simdist.c10d.engine._communicator import Communicator, Member
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.engine._strategies import StreamAlgorithm
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.c10d.surface import _memory
from simdist.c10d.surface._events import OperationAdmitted
from simdist.c10d.surface._modes import unseen
from simdist.c10d.surface._operation import Operation
from simdist.cluster import Flow as WireFlow
from simdist.device import Mark, block_of, claim, latest, release
from simdist.errors import MismatchError
from simdist.frames import user_frame, user_line
from simdist.kernel import Task, Timer
from simdist.process import SimProcess, refusal_of
from simdist.records import completed, issued, message_completed, message_issued

if TYPE_CHECKING:
    from simdist.c10d.engine._strategies import Backend, StreamFailure
    from simdist.cluster import Network
    from simdist.kernel import Simulation

__all__ = ["Connection", "Part", "StreamCollective", "StreamCommunicator"]

Tensor = torch.Tensor


class Part:
    """One rank's call: `inputs` is what the data plane wants of it.

    `reads` are tensors of its device that are only read, each with the flat CPU tensor that stands for it in `inputs`;
    `writes` those that are filled. `end` is when its share is over.
    """

    def __init__(
        self,
        connection: Connection,
        rank: int,
        operation: Operation,
        inputs: Any,
        begin: Mark,
        reads: Sequence[tuple[Tensor, Tensor]] = (),
        writes: Sequence[Tensor] = (),
        factor: Any = None,
    ) -> None:
        self.connection = connection
        self.rank = rank
        self.operation = operation
        self.inputs = inputs
        self.begin = begin
        self.factor = factor  # that its operand is multiplied by before a sum
        self.end = Mark(cause=self)
        self.begun = self.lost = False
        self.sequence = -1  # of its operation in the group
        self.site = ""
        self.whole: StreamCollective | None = None  # None for a message
        self.peer = -1  # of a message
        self.work: Any = None  # of the call
        self.strike: tuple[str, Callable[[], None]] | None = None  # a fault inside it, or behind it
        self._reads = reads
        self._writes = writes
        self._claims: list[Any] = []

    @property
    def process(self) -> SimProcess:
        """The process that called."""
        member = self.connection.communicator.members[self.rank]
        assert member is not None
        return member.process

    def claim(self) -> None:
        """It does not begin at once: hold what it will read and write."""
        self._claims = [claim(tensor, self, writes=False) for tensor, _ in self._reads if tensor.is_cuda]
        self._claims += [claim(tensor, self, writes=True) for tensor in self._writes if tensor.is_cuda]

    def settle_claims(self) -> None:
        """It has begun, or never will."""
        release(self._claims, self)
        self.process.wake()

    # -- for memory that is touched ----------------------------------------------------------------------------------

    def copy_inputs(self, block: Any) -> None:
        """The program is about to read, or change, what this only reads: keep it as it is."""
        copies = {id(flat): flat.clone() for tensor, flat in self._reads if block_of(tensor) is block}
        self.inputs = _replaced(self.inputs, copies)

    def wait_until_begun(self) -> None:
        """Park the calling task of its rank until the memory holds what it will."""
        process = self.process
        simulation = process.simulation
        task = simulation.current
        if task is None or task.context is not process or not simulation.owns_this_thread():
            return
        while not self.begun:
            simulation.park(self)
            process.drain()
            streams = self.connection.streams_of(self.rank)
            if streams.error is not None:
                raise streams.error

    # -- for reports ---------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """The operation, as reports name it."""
        name = self.operation.name
        group = self.connection.communicator.name
        if self.whole is None:
            return f"{name}({'dst' if name == 'send' else 'src'}={self.peer}) in group {group!r}"
        return f"{name} #{self.sequence} in group {group!r}"

    def waits_for(self) -> Iterable[Task]:
        """The tasks of those who have not done their part."""
        missing = [self.peer] if self.whole is None else self.whole.missing
        found: list[Task] = []
        for rank in missing:
            member = self.connection.communicator.members[rank]
            if member is not None:
                found += member.process.tasks
        if self.whole is not None and not missing:
            causes = [part.begin.cause for part in self.whole.parts.values() if part.begin.at_ns is None]
            found += [task for cause in causes if cause is not None for task in cause.waits_for()]
        return found


def _replaced(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return copies.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return type(value)([_replaced(each, copies) for each in value])
    return value


class StreamCollective:
    """The parts that meet in one collective of a connection."""

    def __init__(self, connection: Connection, index: int) -> None:
        self.connection = connection
        self.index = index
        self.parts: dict[int, Part] = {}  # by group rank, in the order of the calls
        self.begin_ns = -1
        self.lost = False
        self._timer: Timer | None = None  # of its end
        self._wire: WireFlow | None = None

    @property
    def missing(self) -> list[int]:
        """Those who have not called it."""
        return [rank for rank in self.connection.ranks if rank not in self.parts]

    def join(self, part: Part) -> None:
        """A rank calls it."""
        part.whole = self
        self.parts[part.rank] = part
        if len(self.parts) == len(self.connection.ranks) and not self.lost:
            ready = latest([each.begin for each in self.parts.values()])
            ready.when_known(lambda: self._plan(ready.at_ns or 0))
        if not part.begun:
            part.claim()

    def _plan(self, ready_ns: int) -> None:
        """All streams come there at `ready_ns`, which may lie ahead."""
        if self.lost or self.begin_ns >= 0:
            return
        simulation = self.connection.communicator.simulation
        start_ns = self.connection.open_from_ns(max(ready_ns, simulation.now_ns))
        if start_ns is None:
            self.connection.shut_out.append(lambda: self._plan(ready_ns))
        elif start_ns > simulation.now_ns:
            simulation.call_at(start_ns, self._begin)
        else:
            self._begin()

    @unseen
    def _begin(self) -> None:
        if self.lost:
            return
        connection = self.connection
        communicator = connection.communicator
        simulation = communicator.simulation
        parts = [self.parts[rank] for rank in connection.ranks]
        if not communicator.algorithm.meets([part.operation for part in parts]):
            self._disagree(parts)
            return
        self.begin_ns = simulation.now_ns
        operation = parts[0].operation
        crc = communicator.algorithm.execute([(part.operation, part.inputs, part.factor) for part in parts])
        for part in parts:
            part.begun = True
            part.settle_claims()
        cost = communicator.wire_cost(operation)
        end_ns = simulation.now_ns + cost.duration_ns + connection.delay_ns(simulation.now_ns)
        self._timer = simulation.call_at(end_ns, lambda: self._end(crc))
        if cost.wire_ns >= LIGHT_NS:
            self._wire = communicator.network.begin(
                end_ns - cost.wire_ns, end_ns, cost.byte_ns, cost.load, lambda: self._move_end(crc)
            )
        for part in parts:
            if part.strike is not None and part.strike[0] == "during":
                simulation.call_at((simulation.now_ns + end_ns) // 2, part.strike[1])

    def _disagree(self, parts: Sequence[Part]) -> None:
        """The calls do not fit: the kernels wait for bytes that never come. A strict group tells its ranks."""
        communicator = self.connection.communicator
        self.lose()
        if not communicator.strict:
            return
        lines = [f"ranks do not agree on collective #{parts[0].sequence} in group {communicator.name!r}:"]
        lines += [f"  rank {part.process.rank} called {part.operation.describe()}{part.site}" for part in parts]
        for part in parts:
            self.connection.streams_of(part.rank).error = MismatchError("\n".join(lines))
            part.end.settle(communicator.simulation.now_ns)
            part.process.wake()

    def _move_end(self, crc: int) -> None:
        assert self._wire is not None
        assert self._timer is not None
        self._timer.cancel()
        self._timer = self.connection.communicator.simulation.call_at(self._wire.end_ns, lambda: self._end(crc))

    def _end(self, crc: int) -> None:
        connection = self.connection
        communicator = connection.communicator
        simulation = communicator.simulation
        self._wire = self._timer = None
        parts = [self.parts[rank] for rank in connection.ranks]
        if communicator.counted:
            operation = parts[0].operation
            simulation.bus.record(
                completed(
                    simulation.now_ns, -1, operation.name, communicator.name, parts[0].sequence, self.begin_ns, crc
                )
            )
        connection.collectives.pop(self.index, None)
        for part in parts:
            part.end.settle(simulation.now_ns)
        for part in parts:
            if part.strike is not None and part.strike[0] == "after":
                part.strike[1]()

    def lose(self) -> None:
        """It never ends: a rank is gone, or its calls do not fit."""
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._wire is not None:
            self.connection.communicator.network.withdraw(self._wire)
            self._wire = None


class Connection:
    """What a group's ranks, or two of them, made to talk over: a device and a stream on each."""

    def __init__(self, communicator: StreamCommunicator, key: str, ranks: Sequence[int]) -> None:
        self.communicator = communicator
        self.key = key
        self.ranks = tuple(ranks)
        self.ends: dict[int, tuple[int, int, Any, Any]] = {}  # by rank: device, stream, its streams, the real device
        self.made = False
        self.error: Callable[[int], BaseException] | None = None  # why it can't be made
        self.collectives: dict[int, StreamCollective] = {}  # that have not ended
        self.shut_out: list[Callable[[], None]] = []  # to try again when the network's conditions change
        self.gone: dict[int, None] = {}  # ranks that left it, or aborted it
        self.meetings: dict[int, int] = dict.fromkeys(ranks, 0)  # of all ranks on the host, by rank: see `meet`
        self._counts: dict[int, int] = dict.fromkeys(ranks, 0)  # collectives, by rank
        self._sends: dict[tuple[int, int], deque[Part]] = {}  # by sender and receiver
        self._receives: dict[tuple[int, int], deque[Part]] = {}
        self._free_ns: dict[tuple[int, int], int] = {}  # when the last message has left

    def streams_of(self, rank: int) -> Any:
        """The streams of a rank's process."""
        return self.ends[rank][2]

    def meet(self, member: Member) -> None:
        """Park until all ranks of the connection have come to a meeting as often as this one has."""
        mine = self.meetings[member.rank] = self.meetings[member.rank] + 1
        for rank in self.ranks:
            other = self.communicator.members[rank]
            if other is not None and other is not member:
                other.process.wake()
        wait = _Meeting(self, mine)
        while wait.missing():
            self.communicator.simulation.park(wait)
            member.process.drain()

    def call(self, part: Part) -> None:
        """A rank calls a collective."""
        index = self._counts[part.rank]
        self._counts[part.rank] = index + 1
        collective = self.collectives.get(index)
        if collective is None:
            collective = self.collectives[index] = StreamCollective(self, index)
            if self.gone:
                collective.lose()
        collective.join(part)
        self._tell_of_gone(part)

    def _tell_of_gone(self, part: Part) -> None:
        for rank in self.gone:
            if part.peer in (-1, rank):
                self.communicator.failure.peer_left(self, rank, [part])

    def post(self, part: Part) -> None:
        """A rank sends or receives."""
        sends = part.operation.name == "send"
        pair = (part.rank, part.peer) if sends else (part.peer, part.rank)
        theirs = (self._receives if sends else self._sends).setdefault(pair, deque())
        if theirs and not self.gone:
            other = theirs.popleft()
            send, receive = (part, other) if sends else (other, part)
            ready = latest([send.begin, receive.begin])
            ready.when_known(lambda: self._plan(send, receive, ready.at_ns or 0))
        else:
            (self._sends if sends else self._receives).setdefault(pair, deque()).append(part)
            self._tell_of_gone(part)
        if not part.begun:
            part.claim()

    def _plan(self, send: Part, receive: Part, ready_ns: int) -> None:
        simulation = self.communicator.simulation
        moment: int | None = max(ready_ns, simulation.now_ns)
        if self.communicator.network.disturbed:
            moment = self.communicator.open_from_ns(send.rank, receive.rank, moment or 0)
        if moment is None:
            self.shut_out.append(lambda: self._plan(send, receive, ready_ns))
            return
        moment = max(moment, self._free_ns.get((send.rank, receive.rank), 0))
        size = send.inputs.numel() * send.inputs.element_size()
        sent_ns = moment + round(size * self.communicator.byte_ns(send.rank, receive.rank))
        self._free_ns[send.rank, receive.rank] = sent_ns
        if moment > simulation.now_ns:
            simulation.call_at(moment, lambda: self._move(send, receive, sent_ns))
        else:
            self._move(send, receive, sent_ns)

    @unseen
    def _move(self, send: Part, receive: Part, sent_ns: int) -> None:
        if send.lost or receive.lost:
            return
        ours, theirs = _memory.as_bytes(send.inputs), _memory.as_bytes(receive.inputs)
        if len(ours) > len(theirs):
            self._disagree(send, receive)
            return
        simulation = self.communicator.simulation
        theirs[: len(ours)] = ours
        begin_ns = simulation.now_ns
        for part in (send, receive):
            part.begun = True
            part.settle_claims()
        received_ns = sent_ns + self.communicator.latency_ns(send.rank, receive.rank, begin_ns)
        crc = _memory.checksum([theirs[: len(ours)]], CHECKSUM_BYTES)
        for part, end_ns in ((send, sent_ns), (receive, received_ns)):
            simulation.call_at(end_ns, self._ender(part, begin_ns, crc))
            if part.strike is not None and part.strike[0] == "during":
                simulation.call_at((begin_ns + end_ns) // 2, part.strike[1])

    def _ender(self, part: Part, begin_ns: int, crc: int) -> Callable[[], None]:
        communicator = self.communicator
        simulation = communicator.simulation

        def end() -> None:
            if not part.lost and part.process.running:
                rank, name = part.process.rank, part.operation.name
                simulation.bus.record(
                    message_completed(
                        simulation.now_ns, rank, name, communicator.name, part.sequence, begin_ns, crc, part.peer
                    )
                )
                part.end.settle(simulation.now_ns)
                if part.strike is not None and part.strike[0] == "after":
                    part.strike[1]()

        return end

    def _disagree(self, send: Part, receive: Part) -> None:
        for part in (send, receive):
            part.lost = True
        if not self.communicator.strict:
            return
        lines = [f"a message from rank {send.process.rank} to rank {receive.process.rank} does not fit:"]
        for verb, part in (("sends", send), ("receives", receive)):
            operation = part.operation
            lines.append(f"  rank {part.process.rank} {verb} {operation.dtype_name}{list(operation.shape)}{part.site}")
        for part in (send, receive):
            self.streams_of(part.rank).error = MismatchError("\n".join(lines))
            part.end.settle(self.communicator.simulation.now_ns)
            part.process.wake()

    # -- the network -------------------------------------------------------------------------------------------------

    def open_from_ns(self, now_ns: int) -> int | None:
        """When data gets around the ring: now, or when a cut ends; None: not as things stand."""
        communicator = self.communicator
        if not communicator.network.disturbed:
            return now_ns
        moment = now_ns
        for place, rank in enumerate(self.ranks):
            opened = communicator.open_from_ns(rank, self.ranks[(place + 1) % len(self.ranks)], now_ns)
            if opened is None:
                return None
            moment = max(moment, opened)
        return moment

    def delay_ns(self, now_ns: int) -> int:
        """How much longer it takes because links are delayed."""
        communicator = self.communicator
        if not communicator.network.disturbed:
            return 0
        pairs = [(rank, self.ranks[(place + 1) % len(self.ranks)]) for place, rank in enumerate(self.ranks)]
        usual, _ = communicator.slowest()
        return max(0, max(communicator.latency_ns(*pair, now_ns) for pair in pairs) - usual) * len(pairs)

    def on_network(self) -> None:
        """The network's conditions have changed."""
        waiting, self.shut_out = self.shut_out, []
        for plan in waiting:
            plan()

    # -- its end -----------------------------------------------------------------------------------------------------

    def leave(self, rank: int, *, at_once: bool = True) -> None:
        """A rank is gone, or aborts its end: what has not ended never will, on the others.

        If not `at_once`, what all ranks have called goes on.
        """
        if rank in self.gone:
            return
        self.gone[rank] = None
        parts = []
        for collective in self.collectives.values():
            if not at_once and not collective.missing:
                continue
            collective.lose()
            parts += [part for part in collective.parts.values() if part.rank != rank]
        for queue in (*self._sends.values(), *self._receives.values()):
            for part in queue:
                if part.rank == rank:
                    part.lost = True
                elif part.peer == rank:
                    parts.append(part)
        self.communicator.failure.peer_left(self, rank, parts)

    def release(self, rank: int, now_ns: int) -> None:
        """A rank's end was aborted: its streams are free, and what was under way leaves garbage."""
        unfinished = [collective for collective in self.collectives.values() if collective.missing]
        parts = [collective.parts[rank] for collective in unfinished if rank in collective.parts]
        for queue in (*self._sends.values(), *self._receives.values()):
            parts += [part for part in queue if part.rank == rank]
        for part in parts:
            part.lost = part.begun = True
            part.settle_claims()
            part.end.settle(now_ns)


class _Joining:
    """A rank waits for the others to make a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def describe(self) -> str:
        communicator = self._connection.communicator
        missing = [rank for rank in self._connection.ranks if rank not in self._connection.ends]
        return f"making a communicator of group {communicator.name!r}; not there yet: {missing}"

    def waits_for(self) -> Iterable[Task]:
        communicator = self._connection.communicator
        missing = {communicator.ranks[rank] for rank in self._connection.ranks if rank not in self._connection.ends}
        tasks = communicator.simulation.tasks
        last = {task.context.rank: task for task in tasks if isinstance(task.context, SimProcess)}
        return [task for rank, task in sorted(last.items()) if rank in missing]


class _Meeting:
    """A rank waits on the host for all others of a connection."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def missing(self) -> list[int]:
        """Those who have not come."""
        return [rank for rank, number in self._connection.meetings.items() if number < self._number]

    def describe(self) -> str:
        return f"splitting group {self._connection.communicator.name!r}; not there yet: {self.missing()}"

    def waits_for(self) -> Iterable[Task]:
        members = self._connection.communicator.members
        return [
            task for rank in self.missing() if (member := members[rank]) is not None for task in member.process.tasks
        ]


class StreamCommunicator(Communicator):
    """A group whose operations end on streams. `ranks` are its members' ranks in the world."""

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        name: str,
        size: int,
        backend: Backend,
        *,
        strict: bool = False,
        ranks: Sequence[int] = (),
    ) -> None:
        super().__init__(simulation, network, name, size, backend, strict=strict)
        assert isinstance(backend.algorithm, StreamAlgorithm)
        self.algorithm = backend.algorithm
        self.failure = cast("StreamFailure", backend.failure)
        self.ranks = tuple(ranks) or tuple(range(size))
        self.connections: dict[str, Connection] = {}
        self.known: dict[Any, Operation] = {}  # by their key
        self._messages: dict[int, int] = {}  # by rank: those that it has posted

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The ranks in the world of its members, whether they have come or not."""
        return self.ranks

    def connection(
        self, key: str, ranks: Sequence[int], member: Member, index: int, device: Any, streams: Any
    ) -> Connection:
        """Join a connection with a device of this rank; park until all of its ranks have.

        Raises:
            DistBackendError: it can't be made, in the backend's words.
        """
        known = self.connections.get(key)
        if known is None:
            known = self.connections[key] = Connection(self, key, ranks)
        connection = known
        simulation = self.simulation
        simulation.check()
        connection.ends[member.rank] = index, streams.new(index), streams, device
        if len(connection.ends) == len(connection.ranks):
            connection.error = self.failure.refused_connection(connection)
            begin_ns = simulation.now_ns + (self.backend.connect_ns if len(connection.ranks) > 1 else 0)
            simulation.call_at(begin_ns, lambda: self._made(connection))
        wait = _Joining(connection)
        while not connection.made:
            simulation.park(wait)
            member.process.drain()
        if connection.error is not None:
            raise connection.error(member.rank)
        return connection

    def _made(self, connection: Connection) -> None:
        connection.made = True
        for rank in connection.ranks:
            member = self.members[rank]
            if member is not None:
                member.process.wake()

    def note_collective(
        self, member: Member, operation: Operation, operands: Any, outputs: Any, timeout_ns: int, *, asynchronous: bool
    ) -> int:
        """A member issues a collective that was announced: tell everyone who wants to know. Its number.

        Raises:
            Exception: a listener does not admit it.
        """
        simulation, process, name = self.simulation, member.process, operation.name
        sequence = member.sequence
        member.sequence = sequence + 1
        process.last_operation = (name, sequence, self.name)
        now = simulation.now_ns
        member.on_queued((member.place, operation.index, sequence, member.number, member.messages, now, timeout_ns))
        if simulation.bus.wants(OperationAdmitted):
            error = refusal_of(simulation.bus, OperationAdmitted(process, name, operation.reduction, operands, outputs))
            if error is not None:
                raise error
        if self.counted:
            process.operations += 1
            simulation.bus.record(
                issued(
                    *(now, process.rank, name, self.name, sequence, operation.size, operation.dtype_name),
                    *(operation.shape, operation.root, asynchronous),
                )
            )
        return sequence

    def note_message(self, member: Member, operation: Operation, peer: int) -> int:
        """The same of a message, which has numbers of its own."""
        simulation, process, name = self.simulation, member.process, operation.name
        sequence = self._messages.get(member.rank, 0)
        self._messages[member.rank] = sequence + 1
        process.last_operation = (name, sequence, self.name)
        process.operations += self.counted
        simulation.bus.record(
            message_issued(
                *(simulation.now_ns, process.rank, name, self.name, sequence, operation.size),
                *(operation.dtype_name, operation.shape, peer, True, 0),
            )
        )
        return sequence

    def call_site(self, part: Part) -> None:
        """Remember where a part was called, for a strict group's reports."""
        if self.strict:
            part.site = user_line(user_frame(sys._getframe(1)))

    def leave(self, member: Member) -> None:
        """The member's process ended, or destroyed the group."""
        if member.left:
            return
        member.left = True
        member.process.end_listeners.pop(member.on_end, None)
        for connection in self.connections.values():
            if member.rank in connection.ranks:
                connection.leave(member.rank)

    def _on_network(self) -> None:
        for connection in self.connections.values():
            connection.on_network()
