"""What the members of one group share: the matching of their calls, and what happens to it when one is missing.

Each member counts the collectives it issues; the n-th of one meets the n-th of every other. Most collectives need
everyone: the last to arrive starts the clock of a closed-form cost, and all complete together. The rest, and every
collective once anything is wrong (a dead member, a closed connection, a disturbed network, a timeout), is worked out
message by message in a `Flow`, which also knows who is stuck in what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simdist.c10d._announcement import OperationIssued
from simdist.c10d._collective import Collective
from simdist.c10d._gloo import Personality
from simdist.c10d._mailbox import Mailbox
from simdist.c10d._operation import Operation
from simdist.c10d._profiling import profiled
from simdist.c10d._strict import check_call, remember
from simdist.c10d._work import SimWork
from simdist.cluster import Network
from simdist.errors import InternalError
from simdist.kernel import Simulation
from simdist.process import SimProcess

__all__ = ["Communicator", "Member"]

_SILENT_WHEN_EMPTY = ("all_reduce", "reduce", "all_gather", "reduce_scatter")
_CLOSING_NS = 1_000_000  # from a timeout until the peers see the connection close


class Member:
    """One rank's end of a communicator."""

    def __init__(self, communicator: Communicator, rank: int, process: SimProcess) -> None:
        self.communicator = communicator
        self.rank = rank  # in the group
        self.process = process
        self.sequence = 0  # collectives issued
        self.pending: dict[SimWork, None] = {}  # issued and not settled
        self.left = False  # the process ended, or destroyed the group

    def on_end(self, process: SimProcess) -> None:
        """The process has ended."""
        self.communicator.leave(self)


class Communicator:
    """A group's connections. Made when its first member joins; see `_rendezvous`."""

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        name: str,
        size: int,
        personality: Personality,
        *,
        strict: bool = False,
    ) -> None:
        self.simulation = simulation
        self.network = network
        self.name = name
        self.size = size
        self.personality = personality
        self.strict = strict  # what the backend accepts in silence is an error
        self.members: list[Member | None] = [None] * size
        self.joined = 0
        self.connected = False  # all members have met
        self.collectives: dict[int, Collective] = {}  # in progress, by sequence number
        self.closed: dict[tuple[int, int], tuple[int, str]] = {}  # after a timeout: (rank, peer) -> since when, text
        self.gone: dict[int, tuple[int, str]] = {}  # members that left: when, and what the others are told
        self.mailbox = Mailbox(self)
        # True if closed forms do not hold: something is closed, or faults disturb the network (they are laid on it
        # before the first rank starts).
        self.troubled = network.disturbed
        self._operations: dict[Any, Operation] = {}
        self._slowest: tuple[int, float] | None = None

    def join(self, rank: int, process: SimProcess) -> Member:
        """Add a member; the group is complete when `joined` equals `size`."""
        member = Member(self, rank, process)
        self.members[rank] = member
        self.joined += 1
        process.end_listeners[member.on_end] = None
        return member

    # -- operations ----------------------------------------------------------------------------------------------

    def operation(self, key: Any) -> Operation:
        """The operation with this key; asked often, made once.

        Raises:
            RuntimeError: the backend has no function for this type or reduction.
        """
        found = self._operations.get(key)
        if found is None:
            found = Operation(*key)
            if len(key) > 3:
                self.personality.check(found.name, found.reduction, key[3])
            self._operations[key] = found
        return found

    def issue(
        self,
        member: Member,
        operation: Operation,
        inputs: Any,
        outputs: list[Any],
        timeout_ns: int,
        asynchronous: bool = True,
    ) -> SimWork:
        """The member calls a collective. Returns at once, with the work to wait for.

        `inputs` is what the operation's data plane wants from this rank; `outputs` what the work's future holds.
        """
        simulation = self.simulation
        current = simulation.current
        if current is None or current.doomed:
            simulation.check()
        process = member.process
        sequence = member.sequence
        member.sequence = sequence + 1
        name = operation.name
        process.last_operation = (name, sequence, self.name)
        strike = None
        if self.strict:
            check_call(name, operation.reduction, outputs)
        if simulation.bus.active:
            strike = self.announce(member, name, sequence)
        process.operations += 1
        simulation.events.add(
            (
                simulation.now_ns,
                "issue",
                process.rank,
                name,
                self.name,
                sequence,
                operation.size,
                operation.dtype_name,
                operation.shape,
                -1,
                asynchronous,
            )
        )
        work = SimWork.make(member, name, sequence, outputs)
        profile = process.torch_state.profile
        if profile is not None:
            profiled(profile, work, name, operation.shapes())
        if self.strict and asynchronous:
            remember(work)
        if operation.size == 0 and name in _SILENT_WHEN_EMPTY:
            # Gloo returns at once, without a word to anyone (gloo/allreduce.cc and its like).
            simulation.events.add(
                (simulation.now_ns, "complete", process.rank, name, self.name, sequence, simulation.now_ns, 0)
            )
            work.finish()
            return work
        collective = self.collectives.get(sequence)
        if collective is None:
            collective = self.collectives[sequence] = Collective(self, operation, sequence)
        if strike is not None:
            collective.strike(member.rank, *strike)
        if name == "barrier" and member.pending:
            self._arrive_after_pending(collective, member, work, inputs, timeout_ns)
        else:
            member.pending[work] = None
            collective.arrive(member, work, operation, inputs, timeout_ns)
        return work

    def announce(self, member: Member, name: str, sequence: int) -> tuple[str, Callable[[], None]] | None:
        """Put an operation to the bus, and suffer what must be suffered before it.

        Returns what must still strike, and when: during or after the operation.
        """
        simulation = self.simulation
        if not simulation.bus.wants(OperationIssued):
            return None
        verdict = simulation.bus.announce(OperationIssued(member.process, name, self.name, sequence))
        if verdict.delay_ns:
            simulation.sleep(verdict.delay_ns)
        if verdict.error is not None:
            raise verdict.error
        if verdict.strike is None:
            return None
        if verdict.when != "before":
            return verdict.when, verdict.strike
        verdict.strike()
        if simulation.current is not None and simulation.current.paused:
            simulation.sleep(0)
        return None

    def _arrive_after_pending(
        self, collective: Collective, member: Member, work: SimWork, inputs: Any, timeout_ns: int
    ) -> None:
        # A barrier first waits for every work that this rank queued before (ProcessGroupGloo::barrier).
        earlier = list(member.pending)
        left = len(earlier)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not work.done:
                collective.arrive(member, work, collective.operation_of(member.rank), inputs, timeout_ns)

        member.pending[work] = None
        collective.expect(member.rank, self.operation(("barrier",)))
        for other in earlier:
            other.after = [*(other.after or ()), one_less]

    # -- costs, for the flow and for closed forms ----------------------------------------------------------------

    def latency_ns(self, source: int, target: int, now_ns: int) -> int:
        """One-way latency between two group ranks."""
        return self.network.latency_ns(self._global(source), self._global(target), now_ns)

    def byte_ns(self, source: int, target: int) -> float:
        """Transfer time per byte between two group ranks."""
        return self.network.path(self._global(source), self._global(target)).byte_ns

    def open_from_ns(self, source: int, target: int, now_ns: int) -> int | None:
        """When a message that leaves now gets through."""
        return self.network.open_from_ns(self._global(source), self._global(target), now_ns)

    def slowest(self) -> tuple[int, float]:
        """Latency and time per byte of the slowest pair of ring neighbours."""
        if self._slowest is None:
            paths = [self.network.path(self._global(r), self._global((r + 1) % self.size)) for r in range(self.size)]
            self._slowest = max(p.latency_ns for p in paths), max(p.byte_ns for p in paths)
        return self._slowest

    def _global(self, rank: int) -> int:
        member = self.members[rank]
        if member is None:
            raise InternalError(f"group {self.name!r} was used before rank {rank} joined")
        return member.process.rank

    # -- trouble -------------------------------------------------------------------------------------------------

    def closed_pair(self, rank: int, peer: int) -> tuple[int, str] | None:
        """Since when `rank` can no longer talk to `peer`, and what it is told; None while the connection is open.

        The moment may lie ahead: the end of a connection takes its time to reach the other side.
        """
        known = self.closed.get((rank, peer))
        gone = self.gone.get(peer)
        if gone is None:
            return known
        left_ns, text = gone
        opened = self.open_from_ns(peer, rank, left_ns)
        if opened is None:
            return known
        noticed = (opened + self.latency_ns(peer, rank, opened), text)
        return noticed if known is None else min(known, noticed)

    def close_pair(self, rank: int, peer: int, text: str) -> None:
        """`rank` can no longer talk to `peer`; the first reason stays."""
        self.closed.setdefault((rank, peer), (self.simulation.now_ns, text))
        self.troubled = True

    def timed_out(self, rank: int) -> None:
        """A rank ran out of time in a wait: Gloo then closes all its connections.

        The other ends see it a moment later. On real processes those that wait since nearly the same time then run out
        of time themselves, and that is what they report.
        """
        for peer in range(self.size):
            if peer != rank:
                self.close_pair(rank, peer, self.personality.pair_closed())
        self.simulation.call_at(self.simulation.now_ns + _CLOSING_NS, lambda: self._close_other_ends(rank))

    def _close_other_ends(self, rank: int) -> None:
        for peer in range(self.size):
            if peer != rank:
                self.close_pair(peer, rank, self.personality.closed_by_peer(rank))
        self.reconsider()

    def leave(self, member: Member) -> None:
        """The member's process ended, or destroyed the group: its connections close."""
        if member.left:
            return
        member.left = True
        member.process.end_listeners.pop(member.on_end, None)
        rank = member.rank
        busy = any(c.in_flight for c in self.collectives.values())
        text = self.personality.reset_by_peer(rank) if busy else self.personality.closed_by_peer(rank)
        self.gone[rank] = (self.simulation.now_ns, text)
        self.troubled = True
        self.mailbox.leave(member)
        for collective in list(self.collectives.values()):
            collective.leave(rank)
        # Whoever has something under way must be told when the end of the connection reaches it.
        told = (
            {
                closed[0]
                for peer, other in enumerate(self.members)
                if other is not None and other.pending and (closed := self.closed_pair(peer, rank)) is not None
            }
            if self.collectives or self.mailbox.busy
            else ()
        )
        for time_ns in sorted(told):
            self.simulation.call_at(time_ns, self.reconsider)

    def reconsider(self) -> None:
        """Something closed: see what that means for everything in progress."""
        for collective in list(self.collectives.values()):
            collective.rebuild()
        self.mailbox.on_closed()
