"""Operations that end on streams: what the members of a group share whose backend orders its work on devices.

A group makes *connections*: of all members, or of two. A rank's call is a `Part`: of a collective, where a rank's n-th
call on a connection meets the n-th of every other rank; or of a message, which meets the first waiting one of the other
end. A part is ready when its stream has reached it, and the whole begins when all parts are ready.
Then the bytes move at once, and the time that they take passes on the streams: each part has a mark at which it ends.

Calls of different ranks are not compared. When one rank is missing, the other parts do not end, and no rank sees that a
peer is gone: a waiting rank waits until the watchdog or the program ends the wait.

Invariants:
- A part is either not begun, and its memory is claimed; or begun, and its bytes have moved; or lost, and never ends.
- Lost parts stay lost: those of a collective one of whose ranks left or aborted the connection before it ended.
- A rank parks here only where it joins a connection, and where it touches memory that a part has claimed.

Calls that do not fit collide: the backend's algorithm decides which ranks get stuck, and what the others find.

Doubts: bytes move at the beginning, so a program that changes an input while the operation runs is not noticed. A
broadcast, gather or scatter takes all ranks, where real ones may let some go.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch.distributed as dist

from simdist.c10d.calls._member import Member
from simdist.c10d.calls._operation import Fields, Operation
from simdist.c10d.calls._payload import Brought
from simdist.c10d.calls._unseen import unseen
from simdist.c10d.engine._communicator import Communicator
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.engine._strategies import StreamAlgorithm
from simdist.c10d.engine._stream_parts import Part, StreamCollective
from simdist.c10d.surface import _memory
from simdist.device import latest
from simdist.errors import MismatchError
from simdist.frames import user_frame, user_line
from simdist.kernel import Task
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.engine._strategies import Backend, Left, StreamFailure
    from simdist.c10d.engine._wire import WireCost
    from simdist.cluster import Network
    from simdist.device import Streams
    from simdist.kernel import Simulation

__all__ = ["Connection", "StreamCommunicator"]


class Connection:
    """A connection of a group's ranks, or of two of them: a device and a stream on each."""

    def __init__(self, communicator: StreamCommunicator, key: str, ranks: Sequence[int]) -> None:
        self.communicator = communicator
        self.key = key
        self.ranks = tuple(ranks)
        # By rank: device, stream, its streams, the real device.
        self.ends: dict[int, tuple[int, int, Streams, object]] = {}
        self.made = False
        self.makers: Mapping[int, str] = {}  # ranks that publish how the others join, and the store's key of that
        self.error: Callable[[int], BaseException] | None = None  # why it cannot be made
        self.collectives: dict[int | tuple[int, int], StreamCollective] = {}  # those that have not ended
        self.shut_out: list[Callable[[], None]] = []  # to try again when the network's conditions change
        self.gone: dict[int, None] = {}  # ranks that left it, or aborted it
        self.meetings: dict[int, int] = dict.fromkeys(ranks, 0)  # of all ranks on the host, by rank: see `meet`
        self.left: Left = {}  # what mismatched collectives have left on the way
        self._left: Left = {}  # the same for messages
        self._stuck: list[Part] = []  # messages that did not fit, and never end
        self._counts: dict[int, int] = dict.fromkeys(ranks, 0)  # collectives, by rank
        self._sends: dict[tuple[int, int], deque[Part]] = {}  # by sender and receiver
        self._receives: dict[tuple[int, int], deque[Part]] = {}
        self._free_ns: dict[tuple[int, int], int] = {}  # when the last message has left
        self._arrived_ns: dict[tuple[int, int], int] = {}  # when it arrives, on a disturbed network

    def streams_of(self, rank: int) -> Streams:
        """The streams of a rank's process."""
        return self.ends[rank][2]

    def meet(self, member: Member) -> None:
        """Park until all ranks of the connection have arrived at a meeting as often as this one has."""
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
        """Add a rank's call of a collective."""
        index = self._counts[part.rank]
        self._counts[part.rank] = index + 1
        collective = self.collectives.get(index)
        if collective is None:
            collective = self.collectives[index] = StreamCollective(self, index, self.ranks)
            if self.gone:
                collective.lose()
        collective.join(part)
        if self.gone:
            self._report_gone(part)

    def _report_gone(self, part: Part) -> None:
        for rank in self.gone:
            if part.whole is not None and rank not in part.whole.missing_for(part):
                continue  # it exchanges nothing with that rank
            if part.peer in (-1, rank):
                self.communicator.failure.peer_left(self, rank, [part])

    def post(self, part: Part) -> None:
        """Add a rank's send or receive."""
        sends = part.operation.name == "send"
        pair = (part.rank, part.peer) if sends else (part.peer, part.rank)
        theirs = (self._receives if sends else self._sends).setdefault(pair, deque())
        if theirs and part.rank not in self.gone and part.peer not in self.gone:
            other = theirs.popleft()
            send, receive = (part, other) if sends else (other, part)
            ready = latest([send.begin, receive.begin])
            ready.when_known(lambda: self._plan(send, receive, ready.at_ns or 0))
        else:
            (self._sends if sends else self._receives).setdefault(pair, deque()).append(part)
            self._report_gone(part)
        if not part.begun:
            part.claim()

    def _plan(self, send: Part, receive: Part, ready_ns: int) -> None:
        simulation = self.communicator.simulation
        moment: int | None = max(ready_ns, simulation.now_ns)
        if self.communicator.disturbed:
            moment = self.communicator.open_from_ns(send.rank, receive.rank, moment or 0)
            if moment is None or moment > max(ready_ns, simulation.now_ns):
                self.communicator.failure.cut_off(self, [send, receive])
        if moment is None:
            self.shut_out.append(lambda: self._plan(send, receive, ready_ns))
            return
        moment = max(moment, self._free_ns.get((send.rank, receive.rank), 0))
        size = send.tensor.nbytes
        sent_ns = moment + round(size * self.communicator.byte_ns(send.rank, receive.rank))
        if self.communicator.disturbed:
            sent_ns = self.communicator.through_ns(send.rank, receive.rank, size, moment, sent_ns)
        self._free_ns[send.rank, receive.rank] = sent_ns
        if moment > simulation.now_ns:
            simulation.call_at(moment, lambda: self._move(send, receive, sent_ns))
        else:
            self._move(send, receive, sent_ns)

    @unseen
    def _move(self, send: Part, receive: Part, sent_ns: int) -> None:
        if send.lost or receive.lost:
            return
        ours, theirs = _memory.as_bytes(send.tensor), _memory.as_bytes(receive.tensor)
        fits = len(ours) == len(theirs)
        if self.communicator.strict and not (fits and send.operation.dtype_name == receive.operation.dtype_name):
            self._disagree(send, receive)
            return
        if send.change is not None:
            send.change_read()
        begin_ns = self.communicator.simulation.now_ns
        received_ns = sent_ns + self.communicator.latency_ns(send.rank, receive.rank, begin_ns)
        if self.communicator.disturbed:  # no message overtakes another
            pair = send.rank, receive.rank
            self._arrived_ns[pair] = received_ns = max(received_ns, self._arrived_ns.get(pair, 0))
        ends_ns = {send: received_ns, receive: received_ns}  # a rendezvous: a send ends when its bytes have arrived
        if self._left or not fits:
            crc = self._collide(send, receive, ends_ns)
        else:
            theirs.copy_(ours)
            crc = _memory.checksum([theirs], CHECKSUM_BYTES)
        for part, end_ns in ends_ns.items():
            part.begun = True
            part.settle_claims()
            self.communicator.simulation.call_at(end_ns, self._ender(part, begin_ns, crc))
            if part.strike is not None and part.strike[0] == "during":
                self.communicator.simulation.call_at((begin_ns + end_ns) // 2, part.strike[1])

    def _collide(self, send: Part, receive: Part, ends_ns: dict[Part, int]) -> int:
        """Execute a send and a receive that do not fit, or that follow such messages: some of them may not end."""
        calls = [Brought(part.operation, part.payload) for part in (send, receive)]
        collision = self.communicator.streamed.collide_messages((send.rank, receive.rank), calls, self._left)
        for part in (send, receive):
            if part.rank not in collision.done:
                del ends_ns[part]
                self._stuck.append(part)
        for _, _, size, room in collision.cut:
            self.communicator.failure.cut_short(self, receive, send.rank, size, room)
        return collision.checksum

    def _ender(self, part: Part, begin_ns: int, crc: int) -> Callable[[], None]:
        simulation = self.communicator.simulation

        def end() -> None:
            if not part.lost and part.process.running:
                part.member.delivered(part.operation.name, part.sequence, begin_ns, crc, part.peer)
                part.end.settle(simulation.now_ns)
                if part.strike is not None and part.strike[0] == "after":
                    part.strike[1]()

        return end

    def _disagree(self, send: Part, receive: Part) -> None:
        for part in (send, receive):
            part.lost = True
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
        """When data gets around the ring: now, or when a cut ends; None if it cannot under the present conditions."""
        communicator = self.communicator
        if not communicator.disturbed:
            return now_ns
        moment = now_ns
        for place, rank in enumerate(self.ranks):
            opened = communicator.open_from_ns(rank, self.ranks[(place + 1) % len(self.ranks)], now_ns)
            if opened is None:
                return None
            moment = max(moment, opened)
        return moment

    def delay_ns(self, now_ns: int) -> int:
        """How much longer it takes because links are delayed: in each step around the ring as much as the slowest link.

        Random delays of a message are drawn for each step. Only called if the communicator is disturbed.
        """
        communicator = self.communicator
        pairs = [(rank, self.ranks[(place + 1) % len(self.ranks)]) for place, rank in enumerate(self.ranks)]
        usual, _ = communicator.slowest()
        varying = [pair for pair in pairs if communicator.varies(*pair)]
        steady = [pair for pair in pairs if pair not in varying]
        least_ns = max([0, *(communicator.latency_ns(*pair, now_ns) - usual for pair in steady)])
        if not varying:
            return least_ns * len(pairs)
        moment = now_ns
        for _ in pairs:
            moment += usual + max([least_ns, *(communicator.latency_ns(*pair, moment) - usual for pair in varying)])
        return moment - now_ns - usual * len(pairs)

    def slow_ns(self, cost: WireCost, begin_ns: int) -> int:
        """How much longer a collective's bytes, moving from `begin_ns` on, take because of limited bandwidth."""
        communicator = self.communicator
        if not communicator.network.has_limits:
            return 0
        end_ns = begin_ns + cost.wire_ns
        sizes: dict[tuple[int, int], float] = {}
        for source, target, size in cost.traffic():
            sizes[source, target] = sizes.get((source, target), 0.0) + size
        through_ns = communicator.network.through_ns
        return max([end_ns, *(through_ns(*pair, size, begin_ns, end_ns) for pair, size in sizes.items())]) - end_ns

    def on_network(self) -> None:
        """Plan again what could not begin: the network's conditions have changed."""
        waiting, self.shut_out = self.shut_out, []
        for plan in waiting:
            plan()

    # -- its end -----------------------------------------------------------------------------------------------------

    def leave(self, rank: int, *, at_once: bool = True) -> None:
        """Note that a rank is gone, or aborts its end: what has not ended never will, on the others.

        If not `at_once`, collectives that all ranks have called go on.
        """
        if rank in self.gone:
            return
        self.gone[rank] = None
        parts = []
        for collective in self.collectives.values():
            if rank not in collective.ranks or (not at_once and not collective.missing and not collective.stuck):
                continue
            collective.lose()
            parts += [part for part in collective.parts.values() if part.rank != rank and collective.needs(part, rank)]
        for queue in (*self._sends.values(), *self._receives.values(), self._stuck):
            for part in queue:
                if part.rank == rank:
                    part.lost = True
                elif part.peer == rank:
                    parts.append(part)
        self.communicator.failure.peer_left(self, rank, parts)

    def stall(self, rank: int) -> None:
        """Stop the parts of a rank whose device is broken: they never end on any rank, and no rank is informed."""
        for collective in self.collectives.values():
            if rank in collective.parts:
                collective.lose()
        for queue in (*self._sends.values(), *self._receives.values()):
            for part in queue:
                part.lost = part.lost or part.rank == rank

    def release(self, rank: int, now_ns: int) -> None:
        """End the parts of a rank whose end was aborted: its streams are free, and parts under way leave garbage."""
        unfinished = [each for each in self.collectives.values() if each.is_endless]
        parts = [collective.parts[rank] for collective in unfinished if rank in collective.parts]
        for queue in (*self._sends.values(), *self._receives.values(), self._stuck):
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
        """The ranks that have not arrived."""
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
        self.failure = cast("StreamFailure", backend.failure)
        self.ranks = tuple(ranks) or tuple(range(size))
        self.algorithm = self.streamed = backend.algorithm.fitted(network.cluster, self.ranks)
        self.connections: dict[str, Connection] = {}
        self.known: dict[Fields, Operation] = {}

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The ranks in the world of its members, whether they have arrived or not."""
        return self.ranks

    def connection(
        self,
        key: str,
        ranks: Sequence[int],
        member: Member,
        index: int,
        device: object,
        streams: Streams,
        *,
        limit_ns: int,
        rest_ns: int = 0,
        makers: Mapping[int, str],
        ask: Callable[[], None],
    ) -> Connection:
        """Join a connection with a device of this rank; parks until all of its ranks have joined.

        Its `makers` publish how the others join, each under a name. The others wait for that no longer than `limit_ns`,
        and for the remaining ranks no longer than `rest_ns`, or forever. They `ask` a store, which fails if that is
        gone.

        Raises:
            DistBackendError: it cannot be made, in the backend's words.
        """
        known = self.connections.get(key)
        if known is None:
            known = self.connections[key] = self.make_connection(key, ranks)
        connection = known
        connection.makers = makers
        simulation = self.simulation
        simulation.check()
        connection.ends[member.rank] = index, streams.new(index), streams, device
        if member.rank in makers:  # ranks that wait for it have no deadline from now on
            for rank in connection.ranks:
                other = self.members[rank]
                if other is not None and other is not member:
                    other.process.wake()
        if len(connection.ends) == len(connection.ranks):
            connection.error = self.failure.refused_connection(connection)
            begin_ns = simulation.now_ns + (self.backend.connect_ns if len(connection.ranks) > 1 else 0)
            simulation.call_at(begin_ns, lambda: self._made(connection))
        wait = _Joining(connection)
        deadline_ns = simulation.now_ns + limit_ns + self.failure.late_ns
        rest_limit_ns: int | None = None
        unknown = any(maker != member.rank for maker in makers)  # at first it does not know that they have arrived
        while not connection.made:
            if unknown:
                try:
                    ask()
                except dist.DistNetworkError as error:
                    raise self.failure.first_is_missing(connection, member.rank, str(error)) from error
            unknown = any(maker not in connection.ends for maker in makers)
            if not unknown and rest_ns and rest_limit_ns is None:
                rest_limit_ns = simulation.now_ns + rest_ns + self.failure.late_ns
            if not simulation.park(wait, deadline_ns if unknown else rest_limit_ns) and not connection.made:
                if any(maker not in connection.ends for maker in makers):
                    raise self.failure.first_is_missing(connection, member.rank, limit_ns)
                if rest_limit_ns is not None:
                    raise self.failure.others_are_missing(connection)
            member.process.drain()
        if connection.error is not None:
            raise connection.error(member.rank)
        return connection

    def make_connection(self, key: str, ranks: Sequence[int]) -> Connection:
        """Return a connection that no rank has joined."""
        return Connection(self, key, ranks)

    def _made(self, connection: Connection) -> None:
        connection.made = True
        for rank in connection.ranks:
            member = self.members[rank]
            if member is not None:
                member.process.wake()

    def call_site(self, part: Part) -> None:
        """Note where a part was called, for a strict group's reports."""
        part.site = user_line(user_frame(sys._getframe(1)))

    def leave(self, member: Member) -> None:
        """Close a member's connections: its process ended, or destroyed the group."""
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
