"""One collective of one group, from its first caller to its last."""

from __future__ import annotations

import functools
import heapq
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from simdist.c10d.engine import _data
from simdist.c10d.engine._flow import ABORTED, Blocked, Done, Failed, Flow, Slowed
from simdist.c10d.engine._movement import LARGEST, SMALL, Movement
from simdist.c10d.engine._ring import RingFlow
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.c10d.surface._callsite import call_site
from simdist.c10d.surface._memory import checksum
from simdist.c10d.surface._modes import unseen
from simdist.c10d.surface._operation import Operation
from simdist.c10d.surface._work import IN_PLACE, SimWork
from simdist.cluster import Flow as WireFlow
from simdist.cluster import Load
from simdist.errors import MismatchError
from simdist.kernel import Timer
from simdist.process import SimProcess
from simdist.records import completed, failed

if TYPE_CHECKING:
    from simdist.c10d.engine._communicator import Communicator, Member

__all__ = ["Collective"]

UNDER_WAY = 16 << 20  # bytes; of an operation as large as this a part has left when a rank dies inside it
_CHECKSUM_BYTES = 1 << 12
_ROOTED = ("broadcast", "gather", "scatter")
_FOLLOWED = ("all_reduce", "reduce", "broadcast", "all_to_all")
_RINGS = ("all_reduce", "reduce_scatter", "all_gather")
RING_FROM = 16  # ranks from which a ring is followed in arrays
_SPECIAL = ("broadcast", "gather", "scatter", "reduce")


class _Arrival:
    __slots__ = ("held", "inputs", "operation", "settled", "site", "time_ns", "timeout_ns", "work")

    def __init__(self, work: SimWork, operation: Operation, inputs: Any, time_ns: int, timeout_ns: int) -> None:
        self.work = work
        self.operation = operation
        self.inputs = inputs
        self.time_ns = time_ns
        self.timeout_ns = timeout_ns
        self.settled: Failed | Done | None = None  # how it ended, once it did
        self.site = work.site  # " at FILE:LINE in FUNCTION" of the call; found when it is asked for
        self.held: Any = None  # a copy of the tensor as it came, where its bytes are followed


class Collective:
    """Arrivals of the members at one sequence number.

    In the good case it counts arrivals and completes everyone with one timer. Otherwise `_flow` is built, and decides
    for each rank.
    """

    __slots__ = (
        "_at_new_pace",
        "_coming",
        "_disagreement",
        "_flow",
        "_followed",
        "_movement",
        "_one_by_one",
        "_outdated",
        "_strikes",
        "_timeouts",
        "_timers",
        "_voided",
        "_wire",
        "arrivals",
        "begin_ns",
        "communicator",
        "deadline_ns",
        "executed",
        "expected",
        "in_flight",
        "mismatched",
        "operation",
        "sequence",
        "unsettled",
    )

    def __init__(self, communicator: Communicator, operation: Operation, sequence: int) -> None:
        self.communicator = communicator
        self._be(operation)
        self.sequence = sequence
        self.arrivals: dict[int, _Arrival] = {}
        self.expected: dict[int, Operation] = {}
        self.unsettled = communicator.size  # members that still have to end it
        self.begin_ns = -1  # when the last of all members came; -1 before
        self.mismatched = False  # ranks do not agree on what this is
        self._disagreement = False  # likewise in a strict group, whose members are told so
        self._followed = False  # its bytes are followed: see `_movement`
        self._movement: Movement | RingFlow | None = None
        self.in_flight = False  # everyone is inside, data is under way
        self.executed: Any = None  # the data plane's state
        self.deadline_ns: int | None = None
        self._flow: Flow | RingFlow | None = None
        self._outdated = False  # what the flow takes for certain no longer holds
        self._coming: list[int] = []  # ranks that arrived at this instant, and that a ring has not been told of
        self._timeouts: list[tuple[int, int, int]] = []  # heap of (when it runs out of time, rank, stuck since)
        self._timers: dict[int, Timer] = {}
        self._strikes: dict[int, tuple[str, Callable[[], None]]] = {}
        self._voided: dict[int, None] = {}  # ranks whose messages never leave
        self._at_new_pace = False  # it is worked out anew only because its speed is another one
        self._wire: WireFlow | None = None  # its bytes on the network: all of them, or those of the messages followed

    def _be(self, operation: Operation) -> None:
        self.operation = operation
        self._one_by_one = operation.name in _SPECIAL and self.communicator.backend.algorithm.lets_some_go(
            operation, self.communicator.size
        )

    # -- arrivals ------------------------------------------------------------------------------------------------

    def expect(self, rank: int, operation: Operation) -> None:
        """A member has called it but does not take part yet."""
        self.expected[rank] = operation

    def operation_of(self, rank: int) -> Operation:
        """What `rank` called."""
        return self.expected[rank]

    def strike(self, rank: int, when: str, action: Callable[[], None]) -> None:
        """Call `action` while the rank's data is under way ("during") or when its part is over ("after")."""
        self._strikes[rank] = (when, action)

    def pass_by(self, work: SimWork, refusal: RuntimeError) -> None:
        """A member's call is refused: it takes no part, and the others may wait for it."""
        self.unsettled -= 1
        self._report(work, refusal)
        self._maybe_drop()

    def arrive(self, member: Member, work: SimWork, operation: Operation, inputs: Any, timeout_ns: int) -> None:
        """A member takes part from now on."""
        communicator = self.communicator
        simulation = communicator.simulation
        now = simulation.now_ns
        arrivals = self.arrivals
        arrivals[member.rank] = _Arrival(work, operation, inputs, now, timeout_ns)
        work.blockers = self
        if self._disagreement:
            self._tell_mismatch()
            return
        if operation is not self.operation:
            if len(arrivals) == 1:  # the ranks before this one have been refused, and do not count
                self._be(operation)
            elif not operation.fits(self.operation, strict=communicator.strict):
                if communicator.strict:
                    self._tell_mismatch()
                    return
                self.mismatched = self._one_by_one = True
                self._outdated = self._outdated or isinstance(self._flow, RingFlow)  # which takes equals only
        complete = len(arrivals) == communicator.size
        if (
            complete
            and operation.name == "all_to_all"
            and not self.mismatched
            and not _data.exchange_fits(self._inputs())
        ):
            if communicator.strict:
                self._tell_mismatch()
                return
            self.mismatched = self._one_by_one = True  # Gloo finds out message by message
        if communicator.troubled or self._one_by_one or self._flow is not None:
            if self._flow is None or self._outdated or (self.mismatched and self._movement is None):
                self.rebuild()
            elif isinstance(self._flow, RingFlow):
                self._come_together(member.rank)
            else:
                self._follow_unseen(member.rank)
        elif complete:
            self._start()
        elif communicator.backend.failure.has_timeouts:
            if self.deadline_ns is None:
                self.deadline_ns = now + timeout_ns
                simulation.watch_deadline(self)
            elif now + timeout_ns < self.deadline_ns:
                self._move_deadline(now + timeout_ns)

    def _start(self) -> None:
        communicator = self.communicator
        simulation = communicator.simulation
        if self.deadline_ns is not None:
            simulation.unwatch_deadline(self)
            self.deadline_ns = None
        self.begin_ns = now = simulation.now_ns
        if self._strikes and self._void():
            self.rebuild(following=True)
            return
        self.in_flight = True
        cost = communicator.wire_cost(self.operation)
        duration_ns = cost.duration_ns
        end_ns = now + duration_ns
        self._timers[-1] = simulation.call_at(end_ns, self._complete)
        if cost.wire_ns >= LIGHT_NS:
            self._wire = communicator.network.begin(
                end_ns - cost.wire_ns, end_ns, cost.byte_ns, cost.load, self._move_end
            )
        if self._strikes:
            for rank, (when, _) in self._strikes.items():
                if when == "during":
                    simulation.call_at(now + duration_ns // 2, functools.partial(self._strike_during, rank))

    def _move_end(self) -> None:
        """Others have come to its links, or left them."""
        assert self._wire is not None
        self._timers[-1].cancel()
        self._timers[-1] = self.communicator.simulation.call_at(self._wire.end_ns, self._complete)

    def _complete(self) -> None:
        communicator = self.communicator
        simulation = communicator.simulation
        self._timers.clear()
        self._wire = None
        crc = self._execute()
        operation = self.operation
        if communicator.counted:
            now = simulation.now_ns
            simulation.bus.record(
                completed(now, -1, operation.name, communicator.name, self.sequence, self.begin_ns, crc)
            )
        del communicator.collectives[self.sequence]
        simulation.events.settle()
        error = communicator.backend.algorithm.refused_result(operation) if operation.reduction == "avg" else None
        for rank, arrival in self.arrivals.items():
            work = arrival.work
            del work.member.pending[work]
            work.blockers = None
            if error is None:
                work.finish()
            else:
                work.fail(error)
            if self._strikes:
                self._strike_after(rank)
        self.arrivals = {}

    # -- everything that is not the good case --------------------------------------------------------------------

    @unseen
    def rebuild(self, *, following: bool = False) -> None:
        """Work out everything anew: something is known now that changes the future.

        The bytes are followed too if anything is wrong, or if the caller knows that something is about to be.
        """
        if not self.arrivals:
            return
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._wire is not None and self._wire.asks is None:  # the good case is over: its messages are followed now
            self.communicator.network.withdraw(self._wire)
        self._followed = self._followed or self._to_follow(following)
        flow = self._new_flow()
        for rank, arrival in self.arrivals.items():
            if rank in self._voided:
                flow.limit(rank, arrival.time_ns, "the process is gone")
            elif isinstance(arrival.settled, Failed):
                flow.limit(rank, arrival.settled.time_ns, arrival.settled.text)
        self._flow = flow
        self._outdated = False
        self._timeouts = []
        self._coming = []
        if isinstance(flow, RingFlow):
            for rank in self.arrivals:
                self._enter_ring(flow, rank)
            flow.arrive_all({rank: arrival.time_ns for rank, arrival in self.arrivals.items()})
        else:
            for rank, arrival in self.arrivals.items():
                flow.arrive(rank, arrival.time_ns)
        self._follow()

    def _new_flow(self) -> Flow | RingFlow:
        communicator = self.communicator
        operation = self.operation
        slowdowns = communicator.slowdowns(operation)
        costs = communicator if slowdowns == (1.0, 1.0) else Slowed(communicator, *slowdowns)
        ring = None
        large = communicator.size >= RING_FROM and not (self.mismatched or communicator.network.disturbed)
        if large and (operation.name in _RINGS and not operation.is_list_of_reductions):
            ring = communicator.backend.algorithm.ring(operation, communicator.size)
        pace = None if self._wire is None else self._wire.pace
        if ring is None:
            self._movement = Movement(communicator.backend.algorithm.combine) if self._followed else None
            return Flow(
                self._program,
                costs,
                slot=self._slot,
                movement=self._movement,
                closed=communicator.closed_pair,
                connections=communicator,
                pace=pace,
            )
        small = operation.size * communicator.size <= LARGEST
        follows = self._followed and ring.moves and operation.name in _FOLLOWED and small
        moved = None
        if follows:
            dtype = self._any_arrival().inputs.dtype
            moved = communicator.backend.algorithm.combine(operation.reduction, dtype), dtype
        flow = RingFlow(
            ring,
            communicator.size,
            costs,
            movement=moved,
            closed=communicator.closed_pair,
            broken=lambda: [*communicator.gone, *communicator.shut],
            pace=pace,
        )
        self._movement = flow if self._followed else None
        return flow

    def _come_together(self, rank: int) -> None:
        """Tell a ring of this arrival together with all others of this instant: it takes them in one go."""
        if not self._coming:
            simulation = self.communicator.simulation
            simulation.call_at(simulation.now_ns, self._take_arrivals)
        self._coming.append(rank)

    def _take_arrivals(self) -> None:
        coming, self._coming = self._coming, []
        flow = self._flow
        if not coming or not isinstance(flow, RingFlow):
            return  # everything was worked out anew meanwhile
        for rank in coming:
            self._enter_ring(flow, rank)
        flow.arrive_all({rank: self.arrivals[rank].time_ns for rank in coming})
        self._follow()

    def _any_arrival(self) -> _Arrival:
        return next(iter(self.arrivals.values()))

    def _enter_ring(self, flow: RingFlow, rank: int) -> None:
        if flow.moves:
            arrival = self.arrivals[rank]
            if arrival.held is None:
                arrival.held = arrival.inputs.clone()
            flow.enter(rank, arrival.held)

    def _to_follow(self, following: bool) -> bool:
        """True if the bytes are to be followed, if they can be.

        Not later: the tensors of those that are done may hold something else by then. A broadcast that goes well needs
        no copies, and a large tensor is worth them only in trouble.
        """
        if any(arrival.settled is not None for arrival in self.arrivals.values()):
            return False
        communicator = self.communicator
        early = self.operation.name != "broadcast" and self.operation.size <= SMALL
        return following or early or self.mismatched or bool(communicator.shut or communicator.gone)

    def waiting_for(self, rank: int) -> Iterable[int]:
        """Who waits for `rank`, or may."""
        return self.arrivals if self._flow is None or self._outdated else self._flow.stuck_on(rank)

    def cut_off(self, rank: int) -> None:
        """The connections of `rank` closed at this moment."""
        if self._flow is not None and not self._flow.quiet(rank, self.communicator.simulation.now_ns):
            self._outdated = True

    @unseen
    def look_again(self, rank: int) -> None:
        """Connections of `rank` closed; who waits for it may be told now."""
        if not self.arrivals:
            return
        if self._flow is None or self._outdated or (not self._followed and self._to_follow(False)):
            self.rebuild()
        else:
            self._flow.look_again(rank)
            self._follow()

    @unseen
    def leave(self, rank: int) -> None:
        """A member is gone for good, and will not be waited for."""
        arrival = self.arrivals.get(rank)
        if arrival is None:
            self.unsettled -= 1
            self._maybe_drop()
        elif arrival.settled is None:
            failed = Failed(self.communicator.simulation.now_ns, "the process is gone")
            self.cut_off(rank)
            if self._flow is not None:
                self._flow.fail(rank, failed)
            self._settle(rank, failed)
            if self.unsettled and (self._flow is None or self._outdated):
                self.rebuild()  # what was timed for everyone no longer holds

    def expire(self) -> None:
        """The earliest timeout of those who wait has come."""
        self.deadline_ns = None
        communicator = self.communicator
        now = communicator.simulation.now_ns
        if self._flow is None or self._movement is None:
            self.rebuild(following=True)  # which also tells since when each rank waits in what
        assert self._flow is not None
        late = []
        for rank, arrival in self.arrivals.items():
            outcome = self._flow.outcome(rank)
            if (
                arrival.settled is None
                and isinstance(outcome, Blocked)
                and outcome.since_ns + arrival.timeout_ns <= now
            ):
                text = communicator.backend.failure.timed_out(outcome.kind, arrival.timeout_ns)
                late.append((rank, Failed(now, text)))
        for rank, ending in late:
            self._flow.fail(rank, ending)
            self._settle(rank, ending)
            communicator.timed_out(rank)
        for rank, _ in late:
            communicator.look_again(rank)
        if not late:
            self._watch()

    def _program(self, rank: int) -> Any:
        arrival = self.arrivals[rank]
        operation = arrival.operation
        program = self.communicator.backend.algorithm.program(operation, rank, self.communicator.size, self._sizes)
        if (
            isinstance(self._movement, Movement)
            and operation.name in _FOLLOWED
            and operation.size * self.communicator.size <= LARGEST
        ):
            if operation.name == "all_to_all":
                if arrival.held is None:
                    arrival.held = _data.exchange_buffers(arrival.inputs, rank)
                outgoing, incoming = arrival.held
                self._movement.enter(rank, incoming, program, "", outgoing)
                return program
            if arrival.held is None:
                arrival.held = arrival.inputs.clone()
            self._movement.enter(rank, arrival.held, program, operation.reduction)
        return program

    def _slot(self, rank: int) -> str:
        return self.communicator.backend.algorithm.slot(self.arrivals[rank].operation)

    def _sizes(self, rank: int) -> tuple[list[int], list[int]]:
        return _data.exchange_sizes(self.arrivals[rank].inputs)

    def _follow(self, arriving: int | None = None) -> None:
        """Act on what the flow has found out, after it was told of a rank that arrives."""
        flow = self._flow
        assert flow is not None
        if arriving is not None:
            flow.arrive(arriving, self.arrivals[arriving].time_ns)
        flow.conclude()
        simulation = self.communicator.simulation
        now = simulation.now_ns
        self.in_flight = len(self.arrivals) == self.communicator.size
        if self.in_flight and self.begin_ns < 0:
            self.begin_ns = now
            if self._strikes and self._void():
                self.rebuild(following=True)
                return
        changed, flow.changed = flow.changed, []
        for rank in changed:
            arrival = self.arrivals[rank]
            outcome = flow.outcome(rank)
            if arrival.settled is not None or isinstance(outcome, Blocked) or outcome is None or rank in self._voided:
                continue
            if outcome.time_ns <= now:
                self._settle(rank, outcome)
            else:
                self._timers[rank] = simulation.call_at(outcome.time_ns, functools.partial(self._settle, rank, outcome))
                strike = self._strikes.get(rank)
                if strike is not None and strike[0] == "during":
                    simulation.call_at((now + outcome.time_ns) // 2, functools.partial(self._strike_during, rank))
        self._strike_voided(flow)
        self._watch()
        self._use_wires(flow)

    _follow_unseen = unseen(_follow)

    def _use_wires(self, flow: Flow | RingFlow) -> None:
        """Have on the network what is followed, as long as it has messages under way."""
        communicator = self.communicator
        wire = self._wire
        if wire is None and not self.mismatched:
            byte_ns = communicator.slowest()[1]
            if self.operation.size * communicator.size * byte_ns < LIGHT_NS:
                return
        until_ns = flow.until_ns
        if wire is not None and wire.asks is not None and wire.end_ns > communicator.simulation.now_ns:
            communicator.network.retime(wire, until_ns, same=self._at_new_pace)
        elif until_ns > communicator.simulation.now_ns:
            byte_ns = communicator.slowest()[1]
            pace = None if wire is None else wire.pace
            self._wire = communicator.network.follow(until_ns, byte_ns, self._wire_load, self._change_pace, pace)

    def _wire_load(self) -> tuple[Load, int]:
        assert self._flow is not None
        return self.communicator.followed_load.of(self._flow)

    def _change_pace(self) -> None:
        """Others have come to its links, or left them: all that is still to come takes another time."""
        if self._wire is None:
            return  # everyone is done with it
        self._at_new_pace = True
        self.rebuild()
        self._at_new_pace = False

    def _watch(self) -> None:
        """Wait for the earliest timeout of those who are stuck."""
        flow = self._flow
        assert flow is not None
        if not self.communicator.backend.failure.has_timeouts:
            return
        timeouts = self._timeouts
        blocked, flow.blocked = flow.blocked, []
        for rank in blocked:
            outcome = flow.outcome(rank)
            if isinstance(outcome, Blocked):
                since_ns = outcome.since_ns
                heapq.heappush(timeouts, (since_ns + self.arrivals[rank].timeout_ns, rank, since_ns))
        while timeouts:
            _, rank, since_ns = timeouts[0]
            outcome = flow.outcome(rank)
            if self.arrivals[rank].settled is None and isinstance(outcome, Blocked) and outcome.since_ns == since_ns:
                break
            heapq.heappop(timeouts)
        deadline_ns = timeouts[0][0] if timeouts else None
        if deadline_ns != self.deadline_ns:
            self._move_deadline(deadline_ns)

    def _move_deadline(self, deadline_ns: int | None) -> None:
        simulation = self.communicator.simulation
        simulation.unwatch_deadline(self)
        self.deadline_ns = deadline_ns
        if deadline_ns is not None:
            simulation.watch_deadline(self)

    def _settle(self, rank: int, outcome: Done | Failed) -> None:
        """A rank's part has ended."""
        arrival = self.arrivals[rank]
        if arrival.settled is not None:
            return
        communicator = self.communicator
        simulation = communicator.simulation
        arrival.settled = outcome
        timer = self._timers.pop(rank, None)
        if timer is not None:
            timer.cancel()
        work = arrival.work
        work.member.pending.pop(work, None)
        work.blockers = None
        self.unsettled -= 1
        if isinstance(outcome, Done):
            crc = self._execute_for(rank)
            if self.mismatched and arrival.operation.name not in IN_PLACE:
                work.partial, crc = True, 0
            if communicator.counted:
                simulation.bus.record(
                    completed(
                        simulation.now_ns,
                        work.process.rank,
                        self.operation.name,
                        communicator.name,
                        self.sequence,
                        self.begin_ns if self.begin_ns >= 0 else arrival.time_ns,
                        crc,
                    )
                )
            error = communicator.backend.algorithm.refused_result(self.operation)
            if error is None:
                work.finish()
            else:
                work.fail(error)
        elif work.process.running:
            self._leave_partial(rank)
            if outcome.text is ABORTED:
                self._maybe_drop()
                self._abort(rank, work.process)
                return
            self._report(work, RuntimeError(outcome.text))
        self._maybe_drop()
        if self._strikes:
            self._strike_after(rank)

    def _leave_partial(self, rank: int) -> None:
        """Put into the rank's tensor what had arrived when its part failed."""
        operation = self.arrivals[rank].operation
        if operation.name == "all_to_all" and operation.extra is not None and len(operation.extra.inputs) > 1:
            return  # of a list, which torch fills at the end
        if self._movement is not None and self._movement.follows(rank):
            self._take_over(rank, self._movement.result(rank))

    def _take_over(self, rank: int, result: Any) -> None:
        arrival = self.arrivals[rank]
        if arrival.operation.name == "all_to_all":
            _data.end_exchange(arrival.inputs, result)
        else:
            arrival.inputs.copy_(result)

    def _abort(self, rank: int, process: SimProcess) -> None:
        sender = self._flow.overrun_by.get(rank) if isinstance(self._flow, Flow) else None
        if sender is not None:
            self.communicator.unread[rank, sender] = None
        process.stderr.append(self.communicator.backend.failure.overrun() + "\n")
        process.kill(signal.SIGABRT)

    def _report(self, work: SimWork, error: BaseException) -> None:
        communicator = self.communicator
        if communicator.counted:
            now, rank, name = communicator.simulation.now_ns, work.process.rank, communicator.name
            failure = type(error).__name__, str(error)
            communicator.simulation.bus.record(failed(now, rank, work.name, name, self.sequence, *failure))
        work.fail(error)

    def _maybe_drop(self) -> None:
        if self.unsettled == 0:
            self._move_deadline(None)
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            if self._wire is not None:
                self.communicator.network.withdraw(self._wire)
                self._wire = None
            self.communicator.collectives.pop(self.sequence, None)

    def _tell_mismatch(self) -> None:
        """Fail everyone who has come with an error that names all calls; who comes later is told at once."""
        self._disagreement = True
        lines = [f"ranks do not agree on collective #{self.sequence} in group {self.communicator.name!r}:"]
        for _, arrival in sorted(self.arrivals.items()):
            if not arrival.site:  # the rank still stands in its call
                arrival.site = call_site(arrival.work.process.task_in(arrival.work))
            lines.append(f"  rank {arrival.work.process.rank} called {arrival.operation.describe()}{arrival.site}")
        text = "\n".join(lines)
        for arrival in list(self.arrivals.values()):
            if arrival.settled is None:
                arrival.settled = Failed(self.communicator.simulation.now_ns, text)
                arrival.work.member.pending.pop(arrival.work, None)
                self.unsettled -= 1
                self._report(arrival.work, MismatchError(text))
        self._maybe_drop()

    def _void(self) -> bool:
        """Keep back the messages of those who will be struck inside this operation; True if there are any.

        They die with their data still in their own buffers, when the others have come as far as they can without it:
        otherwise a short message would already have left, and nobody would notice. Of a large one a part is under way.
        """
        if self.operation.size >= UNDER_WAY:
            return False
        struck = [rank for rank, (when, _) in self._strikes.items() if when == "during" and rank in self.arrivals]
        self._voided.update(dict.fromkeys(struck))
        return bool(struck)

    def _strike_voided(self, flow: Flow | RingFlow) -> None:
        """Strike when everyone else is stuck or done."""
        simulation = self.communicator.simulation
        due = [rank for rank in self._voided if rank in self._strikes]
        if not due or not self.in_flight:
            return
        ends = [simulation.now_ns]
        for rank in self.arrivals:
            outcome = flow.outcome(rank)
            if rank not in self._voided and outcome is not None:
                ends.append(outcome.since_ns if isinstance(outcome, Blocked) else outcome.time_ns)
        for rank in due:
            simulation.call_at(max(ends), functools.partial(self._strike_during, rank))

    def _strike_during(self, rank: int) -> None:
        strike = self._strikes.pop(rank, None)
        if strike is not None and self.arrivals and self.arrivals[rank].settled is None:
            strike[1]()
            process = self.arrivals[rank].work.process
            if process.running and rank in self._voided:
                process.resume_listeners.append(functools.partial(self._go_on, rank))

    def _go_on(self, rank: int) -> None:
        """A rank that was stopped inside it goes on: what it held back leaves now."""
        arrival = self.arrivals.get(rank)
        if arrival is not None and arrival.settled is None and arrival.work.process.running:
            del self._voided[rank]
            arrival.time_ns = self.communicator.simulation.now_ns
            self.rebuild()

    def has_under_way(self, rank: int) -> bool:
        """True if data of this rank is on the wire: its connections then end with a reset."""
        arrival = self.arrivals.get(rank)
        return self.in_flight and arrival is not None and arrival.settled is None and rank not in self._voided

    def _strike_after(self, rank: int) -> None:
        strike = self._strikes.pop(rank, None)
        if strike is not None and strike[0] == "after":
            strike[1]()

    # -- data ----------------------------------------------------------------------------------------------------

    def _inputs(self) -> list[Any]:
        arrivals = self.arrivals
        return [arrivals[rank].inputs for rank in range(self.communicator.size)]

    def _execute(self) -> int:
        if self.executed is None:
            self.executed = _data.execute(
                self.communicator.backend.algorithm, self.operation, self._inputs(), _CHECKSUM_BYTES
            )
        return int(self.executed)

    def _execute_for(self, rank: int) -> int:
        if self._movement is not None and self._movement.follows(rank):
            arrival = self.arrivals[rank]
            self._take_over(rank, self._movement.result(rank))
            if arrival.operation.name == "all_to_all":
                return checksum(arrival.inputs[0], _CHECKSUM_BYTES)
            if (
                arrival.operation.reduction == "avg"
                and self.communicator.backend.algorithm.refused_result(arrival.operation) is None
            ):
                _data.divide(
                    self.communicator.backend.algorithm, arrival.operation, arrival.inputs, self.communicator.size
                )
            return checksum([arrival.inputs], _CHECKSUM_BYTES)
        if self.mismatched:
            return self._execute_disagreeing(rank)
        if self.operation.name not in _ROOTED:
            if len(self.arrivals) == self.communicator.size:
                return self._execute()
            # A reduce in which this rank has no more part: its tensor is the caller's again, so remember what it held.
            arrival = self.arrivals[rank]
            tensor = arrival.inputs
            arrival.inputs = tensor.clone()
            present = {other: entry.inputs for other, entry in self.arrivals.items()}
            _data.leave_reduce(
                self.communicator.backend.algorithm, self.operation, rank, self.communicator.size, tensor, present
            )
            return 0
        if self.executed is None:
            self.executed = _data.Rooted(self.operation, self.communicator.size)
        return int(self.executed.finish(rank, self._inputs_so_far(), _CHECKSUM_BYTES))

    def _execute_disagreeing(self, rank: int) -> int:
        """Of ranks that do not agree, those that gather or scatter still get what fits."""
        operation = self.arrivals[rank].operation
        if operation.name in ("gather", "scatter") and self.arrivals.keys() >= {operation.root}:
            if self.executed is None:
                self.executed = _data.Rooted(operation, self.communicator.size)
            return int(self.executed.finish(rank, self._inputs_so_far(), _CHECKSUM_BYTES))
        return 0

    def _inputs_so_far(self) -> dict[int, Any]:
        return {rank: arrival.inputs for rank, arrival in self.arrivals.items()}

    def blockers_of(self, rank: int) -> list[int]:
        """Group ranks that hold up `rank`, for the wait-for graph."""
        if self._flow is not None:
            outcome = self._flow.outcome(rank)
            if isinstance(outcome, Blocked):
                return [] if outcome.lost else [outcome.peer]
        return [other for other in range(self.communicator.size) if other not in self.arrivals]
