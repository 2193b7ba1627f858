"""What the members of one group share: the matching of their calls, and what happens to it when one is missing.

Each member counts the collectives it issues; a rank's n-th call meets the n-th of every other rank. Most collectives
need everyone: the last arrival starts the clock of a closed-form cost, and all complete together. The rest, and every
collective once anything is wrong (a dead member, a closed connection, a disturbed network, a timeout), is worked out
message by message in a `Flow`, which also knows which rank is stuck in which step.

Circle of imports: members, works, collectives and messages belong to a communicator, and reach each other through it;
the events of calls carry all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from simdist.c10d.calls import REDUCTIONS
from simdist.c10d.calls._member import Member
from simdist.c10d.calls._operation import Fields, Operation, Row, fields_of
from simdist.c10d.calls._payload import Outputs, Payload
from simdist.c10d.calls._read import read_by
from simdist.c10d.calls._work import PassingWork, SimWork, WorkIssued
from simdist.c10d.calls._worker_threads import WorkerThreads
from simdist.c10d.engine._collective import Arrival, Collective
from simdist.c10d.engine._hand_over import HandOver
from simdist.c10d.engine._mailbox import Mailbox
from simdist.c10d.engine._strategies import Algorithm, Backend
from simdist.c10d.engine._wire import LIGHT_NS, FollowedLoad, WireCost
from simdist.cluster import Load, Network, Path
from simdist.errors import InternalError
from simdist.kernel import EVERYTHING, Simulation
from simdist.process import SimProcess
from simdist.records import completed

__all__ = ["Communicator"]


class Communicator:
    """A group's connections. Made when its first member joins; see `_rendezvous`."""

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        name: str,
        size: int,
        backend: Backend,
        *,
        strict: bool = False,
    ) -> None:
        self.simulation = simulation
        self.network = network
        self.name = name
        self.size = size
        self.backend = backend
        self.has_timeouts = backend.failure.has_timeouts
        self.algorithm: Algorithm = backend.algorithm  # may be replaced by one that fits the group's ranks
        self.strict = strict  # calls that differ, which the backend accepts silently, are an error
        self._ways: dict[tuple[int, int], Path] = {}  # between group ranks, undisturbed
        self.members: list[Member | None] = [None] * size
        self.joined = 0
        self.connected = False  # all members have met
        self.again = False  # another group met at its place in the store before
        self.deserted = False  # a member has left before all had met; its address is still in the store
        self.misled = False  # a member has used old addresses: the group never connects
        self.collectives: dict[int, Collective] = {}  # in progress, by sequence number
        self.shut: dict[int, int] = {}  # ranks that timed out and closed all their connections, and when
        self.gone: dict[int, tuple[int, str]] = {}  # members that left: when, and the error that the others get
        self.unread: dict[tuple[int, int], None] = {}  # (member, peer): it left with data of the peer's unread
        self.mailbox = self.make_mailbox()
        self._make_work = backend.completion.work.make
        self._make_passing = PassingWork.make if backend.completion.work is SimWork else self._make_work
        self.counted = 1  # 0 in a group that serves another one: its operations do not count as operations of the ranks
        # True if faults have disturbed the network since the group was made. Disturbances that ended before do not
        # count: the silence of a host that is up again, for example.
        self.disturbed = network.disturbed_after(simulation.now_ns)
        self.troubled = self.disturbed  # disturbed, or something is closed: closed forms do not hold
        network.listeners.append(self._on_network)
        self.operations: list[Operation] = []  # all that were ever called
        self._operations: dict[Fields | Row, Operation] = {}  # the valid ones: the backend has a function for them
        # Returns an operation that was made before, or None. Hot: the dictionary's own function.
        self.known_operation: Callable[[Fields | Row], Operation | None] = self._operations.get
        self._slowest: tuple[int, float] | None = None
        self._wire_costs: dict[Operation, WireCost] = {}
        self._lets_some_go: dict[Operation, bool] = {}
        self.followed_load = FollowedLoad(network, self._global)

    def join(self, rank: int, process: SimProcess) -> Member:
        """Add a member; the group is complete when `joined` equals `size`."""
        member = Member(self, rank, process)
        self.members[rank] = member
        self.joined += 1
        process.end_listeners[member.on_end] = None
        return member

    def withdraw(self, member: Member) -> None:
        """Remove a member that failed, or whose process ended, before all had met."""
        if self.members[member.rank] is not member:
            return
        if self.simulation.policy.touch is not None:
            self.simulation.policy.touch(EVERYTHING, writes=True)
        member.left = True
        member.process.end_listeners.pop(member.on_end, None)
        self.members[member.rank] = None
        self.joined -= 1
        self.deserted = True
        if not self.joined:
            self.misled = False

    @property
    def missing(self) -> list[int]:
        """The ranks in the group that have not joined."""
        return [rank for rank, member in enumerate(self.members) if member is None]

    @property
    def world_ranks(self) -> tuple[int, ...]:
        """The ranks in the world of its members."""
        return tuple(member.process.rank for member in self.members if member is not None)

    # -- operations ----------------------------------------------------------------------------------------------

    def operation(self, key: Fields | Row) -> Operation:
        """Return the operation with this key; it is made only once.

        Raises:
            RuntimeError: the backend has no function for this type or reduction.
        """
        fields = fields_of(key)
        found = self._operations.get(fields)
        if found is None:
            found = self.new_operation(fields)
            dtype = fields[3]
            if dtype is not None:
                self.backend.arguments.check(found.name, found.reduction, dtype)
            self._operations[fields] = found
        self._operations[key] = found
        return found

    def new_operation(self, key: Fields | Row) -> Operation:
        """Another operation with this key, whether the backend has it or not."""
        made = Operation(*fields_of(key))
        made.index = len(self.operations)
        self.operations.append(made)
        return made

    def issue(
        self,
        member: Member,
        key: Fields | Row,
        payload: Payload,
        outputs: Outputs,
        timeout_ns: int,
        asynchronous: bool = True,
        refusal: RuntimeError | None = None,
        first: Callable[[], None] | None = None,
        others: int = 0,
        passing: bool = False,
    ) -> SimWork:
        """Issue a member's call of a collective. Returns at once, with the work to wait for.

        `outputs` is what the work's future holds. With a `refusal` the work fails with it at once, and the other ranks
        do not learn of this call. `first` is called before, unless the operation is refused. The call counts as itself
        and `others` more operations in torch's numbering. With `passing` the caller is torch's own function, which
        waits and then drops the work.

        Raises:
            Exception: a fault raises it in place of the call, which then leaves no trace.
        """
        simulation = self.simulation
        bus = simulation.bus
        active = bus.active
        strike = member.called(key[0], member.sequence) if active else None
        member.number += 1
        if others:
            member.number += others
            member.parts += others
        if not self.connected:
            member.connect()
        known = self.known_operation
        operation = known(key)
        if operation is None:
            try:
                operation = self.operation(key)
            except RuntimeError as error:
                operation = self.new_operation(key)
                refusal = error if refusal is None else refusal
        if first is not None and refusal is None:
            first()
        current = simulation.current
        process = member.process
        if current is None or current.doomed:
            simulation.check()
        elif current.context is not process:
            member.refuse_stranger(current.context)
        sequence = member.issued(operation, payload, outputs, timeout_ns, asynchronous, refusal is not None)
        name = operation.name
        make = self._make_passing if passing and not bus.heard else self._make_work
        work = make(member, name, sequence, outputs)
        if bus.heard and bus.hears(WorkIssued):
            reads = read_by(operation, payload, member.rank)
            shapes, root, reduction = operation.shapes(), operation.root, operation.reduction
            bus.report(WorkIssued(work, name, shapes, asynchronous, root, reads, reduction))
        if refusal is not None:
            if simulation.policy.touch is not None:
                simulation.policy.touch(EVERYTHING, writes=True)
            collective = self.collectives.get(sequence)
            if collective is None:
                collective = self.collectives[sequence] = Collective(self, operation, sequence)
            collective.refuse(work, refusal)
            return work
        if operation.size == 0 and name in self.backend.algorithm.silent_when_empty:
            member.completed(name, sequence, simulation.now_ns, 0)
            work.finish()
            return work
        collective = self.collectives.get(sequence)
        if simulation.gathers and simulation.policy.touch is not None:
            alike = collective is None or collective.operation == operation
            simulation.policy.touch(("operation", self.name, sequence), writes=not alike or bool(member.pending))
            # Links are shared by all groups.
            simulation.policy.touch("links", writes=operation.size * self.size * self.slowest()[1] >= LIGHT_NS)
        if collective is None:
            collective = self.collectives[sequence] = Collective(self, operation, sequence)
        if active:
            if strike is not None:
                collective.strike(member.rank, *strike)
            if member.change_result is not None:
                change, member.change_result = member.change_result, None
                collective.change_result(member.rank, change)
        pending = member.pending
        if len(pending) < member.threads and not (name == "barrier" and pending):
            pending[work] = None
            collective.arrive(member, work, operation, payload, timeout_ns)
        else:
            arrive = functools.partial(collective.arrive, member, work, operation, payload, timeout_ns)
            if name == "barrier":
                arrive = functools.partial(_call_after, list(pending), work, arrive)
            pending[work] = None
            if member.worker_threads is None:
                member.worker_threads = WorkerThreads(pending, member.threads, lambda: member.left)
            member.worker_threads.run(work, arrive)
        return work

    # -- data ----------------------------------------------------------------------------------------------------

    def payloads(self, arrivals: Mapping[int, Arrival], operation: Operation) -> list[Payload]:
        """The payloads of all ranks, by rank, with which an operation is executed."""
        return [arrivals[rank].payload for rank in range(self.size)]

    def hand_over(self, collective: Collective) -> HandOver:
        """Return the object that gives ranks their bytes in a collective that is followed."""
        return HandOver(collective)

    def make_mailbox(self) -> Mailbox:
        """Return the mailbox in which the group's messages meet."""
        return Mailbox(self)

    def note_completed(self, operation: Operation, sequence: int, begin_ns: int, crc: int) -> None:
        """Record that a collective went well, for all of its ranks at once."""
        if self.counted:
            bus, now = self.simulation.bus, self.simulation.now_ns
            bus.record(completed(now, -1, operation.name, self.name, sequence, begin_ns, crc))

    # -- costs, for the flow and for closed forms ----------------------------------------------------------------

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency between two group ranks."""
        network = self.network
        if network.disturbed:
            return network.latency_ns(self._global(source), self._global(target), now_ns)
        way = self._ways.get((source, target))
        return (self._way(source, target) if way is None else way).latency_ns

    def byte_ns(self, source: int, target: int) -> float:
        """Transfer time per byte between two group ranks."""
        way = self._ways.get((source, target))
        return (self._way(source, target) if way is None else way).byte_ns

    def _way(self, source: int, target: int) -> Path:
        way = self._ways[source, target] = self.network.path(self._global(source), self._global(target))
        return way

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through."""
        network = self.network
        if not network.disturbed:
            return now_ns
        return network.open_from_ns(self._global(source), self._global(target), now_ns)

    def through_ns(self, source: int, target: int, size_bytes: float, start_ns: int, end_ns: int) -> int:
        """When so many bytes have left that start at `start_ns`; without a fault they have left by `end_ns`."""
        return self.network.through_ns(self._global(source), self._global(target), size_bytes, start_ns, end_ns)

    def varies(self, source: int, target: int) -> bool:
        """True if a fault draws a part of the latency between two group ranks, now or at another time."""
        return self.network.varies(self._global(source), self._global(target))

    def wire_cost(self, operation: Operation) -> WireCost:
        """The cost of an operation that needs everyone, from the last arrival to completion."""
        found = self._wire_costs.get(operation)
        if found is None:
            latency_ns, byte_ns = self.slowest()
            slower, longer = self.slowdowns(operation)
            size, algorithm = self.size, self.algorithm
            found = self._wire_costs[operation] = WireCost(
                self.network,
                *algorithm.costs_ns(operation, size, round(latency_ns * slower), byte_ns * longer),
                byte_ns * longer,
                lambda: [
                    (self._global(source), self._global(target), amount * longer)
                    for source, target, amount in algorithm.traffic(operation, size)
                ],
            )
        return found

    def message_load(self, source: int, target: int) -> Load:
        """The load of a message between two group ranks, by link."""
        return self.network.load([(self._global(source), self._global(target), 1.0)])

    def lets_some_go(self, operation: Operation) -> bool:
        """True if a rank may be done before all have arrived."""
        found = self._lets_some_go.get(operation)
        if found is None:
            found = self._lets_some_go[operation] = self.algorithm.lets_some_go(operation, self.size)
        return found

    def slowest(self) -> tuple[int, float]:
        """Latency and time per byte of the slowest pair of ring neighbours."""
        if self._slowest is None:
            paths = [self.network.path(self._global(r), self._global((r + 1) % self.size)) for r in range(self.size)]
            self._slowest = max(p.latency_ns for p in paths), max(p.byte_ns for p in paths)
        return self._slowest

    def slowdowns(self, operation: Operation) -> tuple[float, float]:
        """The factors by which a message's latency and its data take longer in this operation: see `Cluster`."""
        cluster = self.network.cluster
        if operation.name in REDUCTIONS and operation.size >= cluster.reduction_from_bytes:
            return cluster.reduction_latency_slowdown, cluster.reduction_slowdown
        return 1.0, 1.0

    def _global(self, rank: int) -> int:
        member = self.members[rank]
        if member is None:
            raise InternalError(f"group {self.name!r} was used before rank {rank} joined")
        return member.process.place

    # -- trouble -------------------------------------------------------------------------------------------------

    def closed_pair(self, rank: int, peer: int) -> tuple[int, str] | None:
        """Since when `rank` can no longer talk to `peer`, and the error that it gets; None while it is connected.

        The moment may lie ahead: the end of a connection takes its time to reach the other side.
        """
        if not self.troubled:
            return None
        known = self._shut_pair(rank, peer) if self.shut else None
        gone = self.gone.get(peer)
        if gone is None:
            return known
        left_ns, text = gone
        if (peer, rank) in self.unread:
            text = self.backend.failure.reset_by_peer(peer)  # its operating system answers unread data with a reset
        opened = self.open_from_ns(peer, rank, left_ns)
        if opened is None:
            return known
        noticed = (opened + self.latency_ns(peer, rank, opened), text)
        return noticed if known is None else min(known, noticed)

    def _shut_pair(self, rank: int, peer: int) -> tuple[int, str] | None:
        """The answer of `closed_pair` if one of the two timed out; the first reason stays."""
        own_ns, other_ns = self.shut.get(rank), self.shut.get(peer)
        if other_ns is not None and other_ns + self.backend.failure.closing_ns > self.simulation.now_ns:
            other_ns = None  # the other side cannot see it yet
        if own_ns is not None and (other_ns is None or own_ns <= other_ns + self.backend.failure.closing_ns):
            return own_ns, self.backend.failure.pair_closed()
        return (
            None
            if other_ns is None
            else (other_ns + self.backend.failure.closing_ns, self.backend.failure.closed_by_peer(peer))
        )

    def timed_out(self, rank: int) -> None:
        """Note that a rank ran out of time in a wait: Gloo then closes all its connections.

        The other ends see it a moment later. On real processes, ranks that have waited for nearly the same time then
        run out of time themselves, and report that instead.
        """
        now = self.simulation.now_ns
        self.shut.setdefault(rank, now)
        self.troubled = True
        for collective in self.collectives.values():
            collective.cut_off(rank)
        self.simulation.call_at(now + self.backend.failure.closing_ns, functools.partial(self.look_again, rank))

    def leave(self, member: Member) -> None:
        """Close a member's connections: its process ended, or destroyed the group."""
        if member.left:
            return
        if self.simulation.policy.touch is not None:
            self.simulation.policy.touch(EVERYTHING, writes=True)
        member.left = True
        member.process.end_listeners.pop(member.on_end, None)
        rank = member.rank
        busy = any(c.has_under_way(rank) for c in self.collectives.values())
        text = self.backend.failure.reset_by_peer(rank) if busy else self.backend.failure.closed_by_peer(rank)
        self.gone[rank] = (self.simulation.now_ns, text)
        self.troubled = True
        self.mailbox.leave(member)
        for collective in list(self.collectives.values()):
            collective.leave(rank)
        # A rank with something under way must notice when the end of the connection reaches it.
        waiting: dict[int, None] = {}
        for collective in self.collectives.values():
            waiting.update(dict.fromkeys(collective.waiting_for(rank)))
        if self.mailbox.busy:
            waiting.update(dict.fromkeys(range(self.size)))
        moments_ns: dict[int, None] = {}
        for peer in waiting:
            other = self.members[peer]
            if other is not None and other.pending and (closed := self.closed_pair(peer, rank)) is not None:
                moments_ns[closed[0]] = None
        for time_ns in sorted(moments_ns):
            self.simulation.call_at(time_ns, functools.partial(self.look_again, rank))

    def forget(self) -> None:
        """Drop the references back to this group at the world's end; no rank can use the group any more."""
        for member in self.members:
            if member is not None:
                member.left = True
        self.members = [None] * self.size
        self._wire_costs.clear()
        for name in ("mailbox", "followed_load"):
            vars(self).pop(name, None)

    def _on_network(self) -> None:
        """React to changes of the network: messages that have not left may take longer now, or get through."""
        self.troubled = self.disturbed = True
        for collective in list(self.collectives.values()):
            collective.on_network()
        self.mailbox.on_network()

    def look_again(self, rank: int) -> None:
        """Look again after connections of `rank` closed, at the ranks that wait for it."""
        for collective in list(self.collectives.values()):
            collective.look_again(rank)
        self.mailbox.on_closed()


def _call_after(earlier: Sequence[SimWork], barrier: SimWork, arrive: Callable[[], None]) -> None:
    """Let a barrier arrive: it first waits for every work that its rank called before (ProcessGroupGloo::barrier)."""
    unfinished = [work for work in earlier if not work.done]
    left = len(unfinished)
    if not left:
        arrive()

    def one_less() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not barrier.done:
            arrive()

    for work in unfinished:
        work.after = [*(work.after or ()), one_less]
