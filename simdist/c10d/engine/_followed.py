"""A collective that is followed message by message: what each rank sees, and when.

Made when something about a collective is out of order, or when its algorithm lets some ranks go before others have
arrived. A `Flow` (or a `RingFlow`, for a large undisturbed ring) works out the future from all that is known; as long
as nothing disturbs an operation with a root, `Recalled` repeats what was found the last time. This file gives the flow
its facts, and acts on its findings: timers for ranks whose end is known, deadlines for ranks that are stuck, bytes on
the network while messages are under way, strikes when everyone else is stuck or done.

Facts come in three kinds, by what they can change:
- An arrival, or the end of a connection with no transfer of that rank under way, adds to what is known: the flow
  takes it in.
- Another *pace* (other operations started or ended on the same links) gives the messages other moments, but does not
  change which messages meet: the flow is *retimed*, which fails if a limit or a closed connection lies between two
  of these moments.
- Anything else may change the past as the flow sees it (a connection that cuts a transfer off, a condition of the
  network, ranks that disagree, a rank that goes on after a stop): the flow is *rebuilt* from the arrivals.

Invariants:
- `timers` has a timer for each rank whose end is known, lies ahead, and has not happened; `_flow` found it.
- A settled rank keeps its outcome: a rebuilt flow gets a failed one as a limit, so that it helps the others no longer
  than it did; the flow's outcome for a rank that is done is not read.
- `outdated` is True from when the flow relies on a fact that no longer holds until it is rebuilt; nothing acts on an
  outdated flow.
- `_wire` stands for the messages of the flow on the network. At first it may be that of the fast path, which has been
  withdrawn and has the speeds until then. None: the collective is too light to be on the wires, or nothing has been
  under way yet.
- Timers are made anew in the order in which the flow found the ends, whether it was informed, retimed or rebuilt: at
  equal moments that order decides, and a run may not depend on how the flow got its facts.

What was tried: rebuilding at every change. When ranks fail one after the other that costs the cube of their number, so
the flow takes in the ends of connections. When collectives overlap it costs all messages of all of them at each begin
and end of one, so the flow takes in a pace.

Doubts: a change of pace still gives all messages that are ahead other moments, so the work for overlapping collectives
grows with the square of their number, at a small part of what it was. To know less of the future would need a rule for
the load of the next moments that does not need to know when the last byte leaves; `under_way` does. When a pace returns
to full speed, because nothing was under way for a while, messages that are already worked out change only at the next
change. Rings in arrays are rebuilt at each change of pace, without their bytes until these are needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from simdist.c10d.calls import RINGS, ROOTED
from simdist.c10d.calls._unseen import unseen
from simdist.c10d.engine import _data
from simdist.c10d.engine._disturbed import DisturbedFlow
from simdist.c10d.engine._flow import Blocked, ChangingCosts, Failed, Flow, Overrun, Slowed
from simdist.c10d.engine._program import Program
from simdist.c10d.engine._recalled import Past, Recalled
from simdist.c10d.engine._ring import RingFlow
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.cluster import Flow as WireFlow
from simdist.cluster import Load, Pace
from simdist.kernel import Timer

if TYPE_CHECKING:
    from simdist.c10d.engine._collective import Collective

__all__ = ["Followed"]

RING_FROM = 16  # ranks from which a ring is followed in arrays
RECALL_UP_TO = 64  # ranks of the largest group that keeps what was found: beyond, memory outweighs time


class Followed:
    """One collective's messages. `rebuild` must be called first."""

    __slots__ = (
        "_arriving",
        "_collective",
        "_communicator",
        "_flow",
        "_heavy",
        "_same_load",
        "_timeouts",
        "_wire",
        "_wire_since_ns",
        "everyone_inside",
        "hand_over",
        "outdated",
        "timers",
    )

    _flow: Flow | RingFlow | Recalled  # from the first `rebuild` on

    def __init__(self, collective: Collective, wire: WireFlow | None) -> None:
        communicator = collective.communicator
        self._collective = collective
        self._communicator = communicator
        self.hand_over = self._communicator.hand_over(collective)
        self.outdated = False  # see the top of the file
        self.everyone_inside = False  # all members have arrived, and the flow knows
        self._wire = wire
        # Its bytes count on the network. Constant, except for ranks that disagree after a light first call.
        self._heavy = (
            wire is not None or collective.operation.size * communicator.size * communicator.slowest()[1] >= LIGHT_NS
        )
        self._wire_since_ns: int | None = None  # the pace has changed since then, and the flow has not been retimed
        self._same_load = False  # the load on the wires does not change now: only the pace does
        self._arriving: list[int] = []  # ranks that arrived at this instant, and that a ring does not know of yet
        self._timeouts: list[tuple[int, int, int]] = []  # heap of (when it runs out of time, rank, stuck since)
        self.timers: dict[int, Timer] = {}  # by rank: when its part ends; `Collective.settle` removes one

    @property
    def has_bytes(self) -> bool:
        """True if the bytes are followed."""
        return self.hand_over.movement is not None

    @property
    def _held_back(self) -> Container[int]:
        """The ranks whose messages do not leave until a fault has struck them."""
        strikes = self._collective.strikes
        return () if strikes is None else strikes.held_back

    # -- the flow ------------------------------------------------------------------------------------------------

    @unseen
    def rebuild(self, *, with_bytes: bool = False) -> None:
        """Work out everything anew from all that is known; `with_bytes` if the caller knows of trouble to come."""
        collective = self._collective
        if self.timers:
            self._cancel_timers()
        if self._wire is not None and self._wire.asks is None:  # the fast path is over: its messages are followed now
            self._communicator.network.withdraw(self._wire)
        self.hand_over.decide(with_bytes)
        if not with_bytes and self._may_recall():
            self._recall()
            return
        flow = self._new_flow()
        self._limit(flow)
        self._flow = flow
        self.outdated = False
        self._wire_since_ns = None
        self._timeouts = []
        self._arriving = []
        if isinstance(flow, RingFlow):
            self._enter_ring(flow, list(collective.arrivals))
        else:
            for rank, arrival in collective.arrivals.items():
                flow.arrive(rank, arrival.time_ns)
        self._act()

    def _may_recall(self) -> bool:
        """True if nothing disturbs it, so that the findings follow from the arrivals alone."""
        collective, communicator = self._collective, self._communicator
        operation = collective.operation
        return (
            operation.name in ROOTED
            and len(collective.arrivals) == 1
            and not (communicator.troubled or communicator.network.disturbed or collective.mismatched)
            and collective.strikes is None
            and self._wire is None
            and (not self._heavy or communicator.network.quiet)  # otherwise a flow is needed at once
            and communicator.size <= RECALL_UP_TO
        )

    def _recall(self) -> None:
        """Begin with the first arrival."""
        collective, hand_over = self._collective, self.hand_over
        operation = collective.operation
        past = operation.past
        if not isinstance(past, Past):
            past = operation.past = Past(self._communicator.size)
        enter = self._program if hand_over.has_tensors else None
        self._flow = flow = Recalled(past, self._message_flow, hand_over.begin_messages(), enter)
        for rank, arrival in collective.arrivals.items():
            if not flow.arrive(rank, arrival.time_ns):
                self._worked_out().arrive(rank, arrival.time_ns)
        self._act()

    def _worked_out(self) -> Flow | RingFlow:
        """Return the flow, after it is recalled no longer."""
        flow = self._flow
        if isinstance(flow, Recalled):
            flow = self._flow = flow.work_out()
        return flow

    def _limit(self, flow: Flow | RingFlow) -> None:
        """Give the flow the ranks that do not go on, and since when."""
        held_back = self._held_back
        for rank, arrival in self._collective.arrivals.items():
            if rank in held_back:
                flow.limit(rank, arrival.time_ns, "the process is gone")
            elif isinstance(arrival.settled, Failed):
                flow.limit(rank, arrival.settled.time_ns, arrival.settled.text)

    def _new_flow(self) -> Flow | RingFlow:
        collective, communicator, hand_over = self._collective, self._communicator, self.hand_over
        operation = collective.operation
        algorithm = communicator.backend.algorithm
        ring = None
        large = communicator.size >= RING_FROM and not (collective.mismatched or communicator.disturbed)
        if large and (operation.name in RINGS and not operation.is_list_of_reductions):
            ring = algorithm.ring(operation, communicator.size)
        if ring is None:
            return self._message_flow(movement=hand_over.begin_messages(), pace=self._pace)
        flow = RingFlow(
            ring,
            communicator.size,
            self._costs(),
            movement=hand_over.ring_combine() if ring.moves else None,
            closed=communicator.closed_pair,
            broken=lambda: [*communicator.gone, *communicator.shut],
            pace=self._pace,
        )
        hand_over.movement = flow if hand_over.follows_bytes else None
        return flow

    def _message_flow(self, **more: Any) -> Flow:
        """Return a new `Flow` of this collective, with more of its settings."""
        communicator = self._communicator
        return (DisturbedFlow if communicator.disturbed else Flow)(
            self._program,
            self._costs(),
            slot=self._slot,
            closed=communicator.closed_pair,
            connections=communicator,
            retimes=self._heavy,
            **more,
        )

    def _costs(self) -> ChangingCosts:
        communicator = self._communicator
        slowdowns = communicator.slowdowns(self._collective.operation)
        return communicator if slowdowns == (1.0, 1.0) else Slowed(communicator, *slowdowns)

    @property
    def _pace(self) -> Pace | None:
        return None if self._wire is None else self._wire.pace

    def _program(self, rank: int) -> Program:
        operation = self._collective.arrivals[rank].operation
        communicator = self._communicator
        program = communicator.backend.algorithm.program(operation, rank, communicator.size, self._sizes)
        if self.hand_over.movement is not None:
            self.hand_over.enter(rank, program)
        return program

    def _slot(self, rank: int) -> str:
        return self._communicator.backend.algorithm.slot(self._collective.arrivals[rank].operation)

    def _sizes(self, rank: int) -> tuple[list[int], list[int]]:
        return _data.exchange_sizes(self._collective.arrivals[rank].exchanged)

    def _enter_ring(self, flow: RingFlow, ranks: list[int]) -> None:
        for rank in ranks:
            self.hand_over.enter_ring(flow, rank)
        flow.arrive_all({rank: self._collective.arrivals[rank].time_ns for rank in ranks})

    # -- facts ---------------------------------------------------------------------------------------------------

    @unseen
    def arrive(self, rank: int) -> None:
        """Take in a member that has arrived, and is among the arrivals."""
        flow, collective = self._flow, self._collective
        if isinstance(flow, Recalled):
            undisturbed = not (self.outdated or collective.mismatched or self._communicator.troubled)
            if undisturbed and flow.arrive(rank, collective.arrivals[rank].time_ns):
                self._act()
                return
            flow = self._worked_out()
        if self.outdated or (collective.mismatched and not self.has_bytes):
            self.rebuild()
        elif isinstance(flow, RingFlow):
            # It takes in all arrivals of an instant at once.
            if not self._arriving:
                simulation = self._communicator.simulation
                simulation.call_at(simulation.now_ns, self._take_arrivals)
            self._arriving.append(rank)
        else:
            flow.arrive(rank, collective.arrivals[rank].time_ns)
            self._act()

    def _take_arrivals(self) -> None:
        ranks, self._arriving = self._arriving, []
        if ranks and isinstance(self._flow, RingFlow):  # otherwise everything was worked out anew meanwhile
            self._enter_ring(self._flow, ranks)
            self._act()

    def note_mismatch(self) -> None:
        """Note that ranks do not agree: a ring cannot work with different calls."""
        self.outdated = self.outdated or isinstance(self._flow, RingFlow)

    def cut_off(self, rank: int) -> None:
        """Note that the connections of `rank` closed at this moment."""
        if not self._worked_out().quiet(rank, self._communicator.simulation.now_ns):
            self.outdated = True

    def look_again(self, rank: int) -> None:
        """Look again after connections of `rank` closed: ranks that wait for it may notice that now."""
        if self.outdated or self._has_to_follow_bytes():
            self.rebuild()
        else:
            self._worked_out().look_again(rank)
            self._act()

    def _has_to_follow_bytes(self) -> bool:
        """True if there is trouble now in which bytes are followed, and they are not."""
        before = self.hand_over.follows_bytes
        self.hand_over.decide(False)
        return self.hand_over.follows_bytes != before

    def leave(self, rank: int, failed: Failed) -> None:
        """Note that a member inside is gone for good, which ends its part."""
        self.cut_off(rank)
        self._worked_out().fail(rank, failed)

    def expire(self) -> None:
        """Fail the ranks that have been stuck for their timeout."""
        collective, communicator = self._collective, self._communicator
        now, failure = communicator.simulation.now_ns, communicator.backend.failure
        late = []
        flow = self._worked_out()
        for rank, arrival in collective.arrivals.items():
            outcome = flow.outcome(rank)
            if (
                arrival.settled is None
                and isinstance(outcome, Blocked)
                and outcome.since_ns + arrival.timeout_ns + failure.late_ns <= now
            ):
                text = failure.timed_out(outcome.kind, arrival.timeout_ns)
                late.append((rank, Failed(now, text)))
        for rank, failed in late:
            flow.fail(rank, failed)
            collective.settle(rank, failed)
            communicator.timed_out(rank)
        for rank, _ in late:
            communicator.look_again(rank)
        if not late:
            self._watch()

    # -- questions -----------------------------------------------------------------------------------------------

    def waiting_for(self, rank: int) -> Iterable[int]:
        """The ranks that wait for `rank`, or may."""
        return self._collective.arrivals if self.outdated else self._worked_out().stuck_on(rank)

    def blockers_of(self, rank: int) -> list[int] | None:
        """The rank that `rank` is stuck on, an empty list if the network is the cause; None if it is not stuck."""
        outcome = self._flow.outcome(rank)
        if isinstance(outcome, Blocked):
            return [] if outcome.lost else [outcome.peer]
        return None

    def overrun_of(self, rank: int) -> Overrun:
        """The message that a rank has no room for, and that makes it abort."""
        flow = self._worked_out()
        assert isinstance(flow, Flow)  # only ranks whose messages fit are in a ring, or recalled
        return flow.overruns[rank]

    # -- acting --------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Act on the flow's findings since the last time."""
        flow, collective = self._flow, self._collective
        flow.conclude()
        simulation = self._communicator.simulation
        now = simulation.now_ns
        strikes = collective.strikes
        self.everyone_inside = len(collective.arrivals) == self._communicator.size
        if self.everyone_inside and collective.begin_ns < 0:
            collective.begin_ns = now
            if strikes is not None and strikes.hold_back():
                self.rebuild(with_bytes=True)
                return
        changed, flow.changed = flow.changed, []
        for rank in changed:
            outcome = flow.outcome(rank)
            if collective.arrivals[rank].settled is not None or isinstance(outcome, Blocked) or outcome is None:
                continue
            if strikes is not None and rank in strikes.held_back:
                continue
            if outcome.time_ns <= now:
                collective.settle(rank, outcome)
            else:
                self.timers[rank] = simulation.call_at(outcome.time_ns, partial(collective.settle, rank, outcome))
                if strikes is not None and strikes.strikes_during(rank):
                    strikes.strike_at(rank, (now + outcome.time_ns) // 2)
        if strikes is not None and self.everyone_inside:
            self._strike_held_back(flow)
        self._watch()
        if self._heavy or collective.mismatched:
            self._use_wires(flow)

    def _strike_held_back(self, flow: Flow | RingFlow | Recalled) -> None:
        """Let held-back faults strike when everyone else is stuck or done."""
        collective = self._collective
        assert collective.strikes is not None
        due = collective.strikes.due()
        ends = [self._communicator.simulation.now_ns]
        for rank in collective.arrivals if due else ():
            outcome = flow.outcome(rank)
            if not collective.is_held_back(rank) and outcome is not None:
                ends.append(outcome.since_ns if isinstance(outcome, Blocked) else outcome.time_ns)
        for rank in due:
            collective.strikes.strike_at(rank, max(ends))

    def _watch(self) -> None:
        """Watch the earliest timeout of the stuck ranks."""
        flow, collective = self._flow, self._collective
        failure = self._communicator.backend.failure
        if not failure.has_timeouts:
            return
        timeouts = self._timeouts
        blocked, flow.blocked = flow.blocked, []
        for rank in blocked:
            outcome = flow.outcome(rank)
            if isinstance(outcome, Blocked):
                since_ns = outcome.since_ns
                due_ns = since_ns + collective.arrivals[rank].timeout_ns + failure.late_ns
                heapq.heappush(timeouts, (due_ns, rank, since_ns))
        while timeouts:
            _, rank, since_ns = timeouts[0]
            outcome = flow.outcome(rank)
            stuck = isinstance(outcome, Blocked) and outcome.since_ns == since_ns
            if stuck and collective.arrivals[rank].settled is None:
                break
            heapq.heappop(timeouts)
        deadline_ns = timeouts[0][0] if timeouts else None
        if deadline_ns != collective.deadline_ns:
            collective.move_deadline(deadline_ns)

    def _cancel_timers(self) -> None:
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def end(self) -> None:
        """Clean up: everyone has settled."""
        if self.timers:
            self._cancel_timers()
        if self._wire is not None:
            self._communicator.network.withdraw(self._wire)
            self._wire = None

    # -- wires ---------------------------------------------------------------------------------------------------

    def _use_wires(self, flow: Flow | RingFlow | Recalled) -> None:
        """Put the flow's messages on the network, as long as it has any under way."""
        network, now = self._communicator.network, self._communicator.simulation.now_ns
        wire = self._wire
        until_ns = flow.until_ns
        if wire is not None and wire.asks is not None and wire.end_ns > now:
            network.retime(wire, until_ns, same=self._same_load)
        elif until_ns > now:
            byte_ns = self._communicator.slowest()[1]
            pace = None if wire is None else wire.pace
            if pace is not None and self._wire_since_ns is None:
                self._wire_since_ns = now  # the pace is the full one from now on, which the flow does not know
            self._wire = network.follow(until_ns, byte_ns, self._load, self._change_pace, pace)

    def _load(self) -> tuple[Load, int]:
        """The load of its messages by link now, and until when that holds."""
        return self._communicator.followed_load.of(self._worked_out())

    def _change_pace(self) -> None:
        """Take another pace: other flows have arrived at its links or left, so all that is ahead takes another time."""
        if self._wire is None:
            return  # all ranks are done with it
        self._same_load = True
        if not self._retime():
            self.rebuild()
        self._same_load = False

    @unseen
    def _act_retimed(self) -> None:
        self._act()

    def _retime(self) -> bool:
        """Give the messages of the flow other moments; False if that is not enough, and it has to be rebuilt."""
        flow, wire = self._worked_out(), self._wire
        assert wire is not None
        if not isinstance(flow, Flow) or self.outdated or wire.pace is None or self._has_to_follow_bytes():
            return False
        self._limit(flow)
        now = self._communicator.simulation.now_ns
        if not flow.retime(wire.pace, now if self._wire_since_ns is None else self._wire_since_ns):
            return False
        self._cancel_timers()
        self._wire_since_ns = None
        self._timeouts = []
        self._act_retimed()
        return True
