"""One collective of one group, from its first caller to its last: its arrivals, and the case in which all goes well.

Most collectives of most runs go well: all members call the same operation, none is late by more than the timeout,
and nothing is closed. Then only the moment of the last call has to be known: one timer ends the operation for all,
after the time that a closed form gives. This file has that *fast path*, and what every collective needs: the arrivals,
the deadline, and how one rank's part ends. All else is made only when it is needed: `Followed` (`_followed.py`) works
out message by message what each rank sees, `HandOver` (`_hand_over.py`) gives each its bytes one by one, and `Strikes`
(`_strikes.py`) keeps the faults that strike inside.

A collective is in one `Phase` at a time:

    GATHERING ---- all have called -----> IN_FLIGHT ---- the timer ----> ENDED
        |                                     |                            ^
        | something is out of order           | somebody leaves, a link    | all have
        v                                     v changes                    | settled
    FOLLOWED  <-------------------------------+----------------------------+
        |                                                                  |
        +---- strict, and calls differ (from GATHERING too) --> DISAGREEING
                                                                all have called, or left

Invariants:
- Phases only change along these lines; anything else is an InternalError. No line leads back: a collective that was
  once followed is followed to its end, because others may still depend on ranks that have gone on.
- `unsettled` counts the members whose part has not ended. A part ends when it is done, has failed, was refused, or when
  the member is gone before it arrived. At zero the collective ends and is forgotten, with its timers, its deadline and
  its bytes on the wires.
- `arrivals` is in the order of the calls, which decides ties; a settled arrival stays in it, since others may still
  wait for its messages. Only the fast path empties it, when everyone has settled at once.
- The deadline of the fast path is the earliest of those that have arrived, as if each waited from its call on for
  a missing member. That may be too early, never too late: at the deadline the collective is followed, and that
  shows which rank waits since when.
- The closed form and following give the same times, to a few per cent. This is a property of the backends' algorithms,
  held by tests, and the reason why an operation may begin one way and end the other.

What was tried: all in one class, with 24 slots; each change had to ask which combinations of its flags can occur.

Doubts: an operation that lets some ranks go early (`Algorithm.lets_some_go`) is always followed, even a broadcast that
goes well; recalling its messages (`_recalled.py`) halves the cost. After a disagreement a strict group needlessly goes
on watching its deadline: a deadlock of other ranks that comes before it is found only at the deadline.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, cast

from simdist.c10d.calls import IN_PLACE, ROOTED
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Exchanged, Payload
from simdist.c10d.calls._read import Change
from simdist.c10d.calls._unseen import unseen
from simdist.c10d.calls._work import CollectiveRead, SimWork
from simdist.c10d.engine import _data
from simdist.c10d.engine._flow import ABORTED, Done, Failed
from simdist.c10d.engine._followed import Followed
from simdist.c10d.engine._mismatch import describe_mismatch
from simdist.c10d.engine._strikes import Strikes
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.c10d.surface._memory import freed_since
from simdist.cluster import Flow as WireFlow
from simdist.errors import InternalError, MismatchError
from simdist.kernel import Timer
from simdist.process import SimProcess

if TYPE_CHECKING:
    from torch import Tensor

    from simdist.c10d.calls._member import Member
    from simdist.c10d.engine._communicator import Communicator

__all__ = ["Arrival", "Collective", "Phase"]


class Phase(IntEnum):
    """Where a collective stands; see the top of the file."""

    GATHERING = 0  # not all have called, and nothing is wrong
    IN_FLIGHT = 1  # all have called, and one timer ends it for everyone
    FOLLOWED = 2  # each rank's end is worked out message by message
    DISAGREEING = 3  # the calls of a strict group's ranks do not fit, and the ranks get the error
    ENDED = 4  # every member has settled


# Module names: looking up a member of an enumeration takes as long as the rest of what an arrival does with it.
_GATHERING, _IN_FLIGHT, _FOLLOWED, _DISAGREEING, _ENDED = Phase
_NEXT = ((_IN_FLIGHT, _FOLLOWED, _DISAGREEING, _ENDED), (_FOLLOWED, _ENDED), (_DISAGREEING, _ENDED), (_ENDED,), ())


class Arrival:
    """One member's call."""

    __slots__ = ("held", "operation", "payload", "settled", "site", "time_ns", "timeout_ns", "work")

    def __init__(self, work: SimWork, operation: Operation, payload: Payload, time_ns: int, timeout_ns: int) -> None:
        self.work = work  # settled together with the arrival, unless the member's process is gone
        self.operation = operation  # this member's call; the same as the collective's unless ranks disagree
        self.payload = payload  # a copy once a reduce has let the member go early
        self.time_ns = time_ns  # when it arrived; later if it was stopped inside, so that its messages leave only now
        self.timeout_ns = timeout_ns  # for each wait of its part
        self.settled: Failed | Done | None = None  # how its part ended; set once, when it has ended
        self.site = work.site  # " at FILE:LINE in FUNCTION" of the call; "" until a mismatch needs it
        self.held: Any = None  # copies of its tensors from when it was first followed; None before

    @property
    def tensor(self) -> Tensor:
        """The one tensor of its payload."""
        return cast("Tensor", self.payload)

    @property
    def exchanged(self) -> Exchanged:
        """Its payload, of an all_to_all."""
        return cast("Exchanged", self.payload)


class Collective:
    """The calls of a group's members that have the same number, and their outcome."""

    __slots__ = (
        "_followed",
        "_one_by_one",
        "_refused",
        "_timer",
        "_wire",
        "arrivals",
        "begin_ns",
        "communicator",
        "deadline_ns",
        "mismatched",
        "operation",
        "phase",
        "sequence",
        "strikes",
        "unsettled",
    )

    def __init__(self, communicator: Communicator, operation: Operation, sequence: int) -> None:
        self.communicator = communicator
        self._set_operation(operation)  # what the first to arrive called: the others are compared with it
        self.sequence = sequence  # the same on all members
        self.phase = _GATHERING  # changes in `_enter` only
        self.arrivals: dict[int, Arrival] = {}  # by group rank, in the order of the calls
        self.unsettled = communicator.size  # members whose part has not ended; falls, and never below 0
        self.begin_ns = -1  # when the last of all members arrived; -1 before
        self.mismatched = False  # not strict, and calls differ: each rank's messages are those of its own call
        self.deadline_ns: int | None = None  # watched by the kernel while it is not None
        self.strikes: Strikes | None = None  # faults that strike inside; None: none ever did
        self._timer: Timer | None = None  # the end, in flight
        self._wire: WireFlow | None = None  # in flight: its bytes on the network, if they are worth it
        self._followed: Followed | None = None  # not None from FOLLOWED on
        self._refused: dict[int, None] | None = None  # members whose call was refused

    def _set_operation(self, operation: Operation) -> None:
        self.operation = operation
        # A rank may be done before all have arrived.
        self._one_by_one = operation.name in ROOTED and self.communicator.lets_some_go(operation)

    def _enter(self, phase: Phase) -> None:
        if phase not in _NEXT[self.phase]:
            raise InternalError(
                f"{self.operation.name} #{self.sequence} in group {self.communicator.name!r} went from "
                f"{self.phase.name} to {phase.name}, which no collective does"
            )
        self.phase = phase

    # -- arrivals ------------------------------------------------------------------------------------------------

    def strike(self, rank: int, when: Literal["during", "after"], action: Callable[[], None]) -> None:
        """Call `action` while the rank's data is under way ("during") or when its part is over ("after")."""
        if self.strikes is None:
            self.strikes = Strikes(self)
        self.strikes.add(rank, when, action)

    def change_result(self, rank: int, change: Change) -> None:
        """Change the rank's result when it is there."""
        if self.strikes is None:
            self.strikes = Strikes(self)
        self.strikes.change_result(rank, change)

    def refuse(self, work: SimWork, refusal: RuntimeError) -> None:
        """Refuse a member's call: the member takes no part, and the others may wait for it."""
        if self._refused is None:
            self._refused = {}
        self._refused[work.member.rank] = None
        self.unsettled -= 1
        self._report(work, refusal)
        self._end_if_all_settled()

    def arrive(self, member: Member, work: SimWork, operation: Operation, payload: Payload, timeout_ns: int) -> None:
        """Let a member take part from now on."""
        communicator = self.communicator
        simulation = communicator.simulation
        now = simulation.now_ns
        arrivals = self.arrivals
        arrivals[member.rank] = Arrival(work, operation, payload, now, timeout_ns)
        work.blockers = self
        if self.phase is _DISAGREEING:
            self._fail_disagreeing()
            return
        if operation is not self.operation and not self._compare(operation):
            return
        complete = len(arrivals) == communicator.size
        if complete and operation.name == "all_to_all" and not self._compare_exchange():
            return
        if self._followed is not None:
            self._followed.arrive(member.rank)
        elif communicator.troubled or self._one_by_one:
            self.follow()
        elif complete:
            self._start()
        elif communicator.has_timeouts:
            due_ns = now + timeout_ns + communicator.backend.failure.late_ns
            if self.deadline_ns is None:
                self.deadline_ns = due_ns
                simulation.watch_deadline(self)
            elif due_ns < self.deadline_ns:
                self.move_deadline(due_ns)

    def _compare(self, operation: Operation) -> bool:
        """Compare the latest call with the first one; False if every rank got the error."""
        if len(self.arrivals) == 1:  # the ranks before this one have been refused, and do not count
            self._set_operation(operation)
            return True
        return operation.fits(self.operation, strict=self.communicator.strict) or self._note_mismatch()

    def _compare_exchange(self) -> bool:
        """Compare the sizes that ranks send to each other, once all have arrived; False if every rank got the error."""
        arrivals = self.arrivals
        exchanged = [arrivals[rank].exchanged for rank in range(self.communicator.size)]
        return self.mismatched or _data.exchange_fits(exchanged) or self._note_mismatch()

    def _note_mismatch(self) -> bool:
        if self.communicator.strict:
            self._enter(_DISAGREEING)
            self._fail_disagreeing()
            return False
        self.mismatched = self._one_by_one = True  # Gloo notices message by message, or never
        if self._followed is not None:
            self._followed.note_mismatch()
        return True

    def _fail_disagreeing(self) -> None:
        """Fail all that have arrived with an error that names all calls; a rank that arrives later gets it at once."""
        text = describe_mismatch(self)
        for arrival in list(self.arrivals.values()):
            if arrival.settled is None:
                arrival.settled = Failed(self.communicator.simulation.now_ns, text)
                arrival.work.member.pending.pop(arrival.work, None)
                self.unsettled -= 1
                self._report(arrival.work, MismatchError(text))
        self._end_if_all_settled()

    # -- the fast path -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        communicator = self.communicator
        simulation = communicator.simulation
        if self.deadline_ns is not None:
            simulation.unwatch_deadline(self)
            self.deadline_ns = None
        self.begin_ns = now = simulation.now_ns
        if self.strikes is not None and self.strikes.hold_back():
            self.follow(with_bytes=True)
            return
        self._enter(_IN_FLIGHT)
        cost = communicator.wire_cost(self.operation)
        duration_ns = cost.duration_ns
        end_ns = now + duration_ns
        self._timer = simulation.call_at(end_ns, self._complete)
        if cost.wire_ns >= LIGHT_NS:
            self._wire = communicator.network.begin(
                end_ns - cost.wire_ns, end_ns, cost.byte_ns, cost.load, self._move_end
            )
        if self.strikes is not None:
            for rank in self.strikes.ranks_during():
                self.strikes.strike_at(rank, now + duration_ns // 2)

    def _move_end(self) -> None:
        """Move the end: other flows have arrived at its links, or have left them."""
        assert self._wire is not None
        assert self._timer is not None
        self._timer.cancel()
        self._timer = self.communicator.simulation.call_at(self._wire.end_ns, self._complete)

    def _complete(self) -> None:
        """End it for everyone at once."""
        communicator = self.communicator
        simulation = communicator.simulation
        self._enter(_ENDED)
        self._timer = self._wire = None
        operation = self.operation
        algorithm = communicator.backend.algorithm
        payloads = communicator.payloads(self.arrivals, operation)
        bus = simulation.bus
        if bus.heard and bus.hears(CollectiveRead):
            bus.report(CollectiveRead([arrival.work for arrival in self.arrivals.values()]))
        crc, error = 0, None if operation.name == "sparse_all_reduce" else freed_since(payloads)
        if error is None:
            try:
                crc = _data.execute(algorithm, operation, payloads, _data.CHECKSUM_BYTES)
            except RuntimeError as raised:  # torch cannot execute the operation with these tensors
                error = raised
        communicator.note_completed(operation, self.sequence, self.begin_ns, crc)
        del communicator.collectives[self.sequence]
        simulation.events.settle()
        if operation.reduction == "avg" and error is None:
            error = algorithm.refused_result(operation)
        strikes = self.strikes
        if strikes is not None and error is None:
            strikes.change_results()
        for rank, arrival in self.arrivals.items():
            work = arrival.work
            del work.member.pending[work]
            work.blockers = None
            if error is None:
                work.finish()
            else:
                work.fail(error)
            if strikes is not None:
                strikes.strike_after(rank)
        self.arrivals = {}

    # -- out of order --------------------------------------------------------------------------------------------

    def follow(self, *, with_bytes: bool = False) -> None:
        """Work out everything anew, message by message, because of a fact that changes the future.

        The bytes are followed too if anything is wrong, or if the caller knows of trouble to come (`with_bytes`).
        """
        if self._followed is None:
            self._enter(_FOLLOWED)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            wire, self._wire = self._wire, None
            self._followed = Followed(self, wire)
        self._followed.rebuild(with_bytes=with_bytes)

    @property
    def _is_over(self) -> bool:
        """True if no rank waits in it, or ever will."""
        return self.phase is _DISAGREEING or self.phase is _ENDED

    def on_network(self) -> None:
        """Follow it: the network's conditions have changed."""
        if self.arrivals and not self._is_over:
            self.follow()

    @unseen
    def look_again(self, rank: int) -> None:
        """Look again after connections of `rank` closed: ranks that wait for it may notice that now."""
        if not self.arrivals or self._is_over:
            return
        if self._followed is None:
            self.follow()
        else:
            self._followed.look_again(rank)

    def cut_off(self, rank: int) -> None:
        """Note that the connections of `rank` closed at this moment."""
        if self._followed is not None:
            self._followed.cut_off(rank)

    @unseen
    def leave(self, rank: int) -> None:
        """Note that a member is gone for good: others no longer wait for it."""
        arrival = self.arrivals.get(rank)
        if arrival is None:
            if self._refused is None or rank not in self._refused:
                self.unsettled -= 1
                self._end_if_all_settled()
        elif arrival.settled is None:
            failed = Failed(self.communicator.simulation.now_ns, "the process is gone")
            if self._followed is not None:
                self._followed.leave(rank, failed)
            self.settle(rank, failed)
            if self.unsettled and (self._followed is None or self._followed.outdated):
                self.follow()  # the time that was worked out for everyone no longer holds

    def expire(self) -> None:
        """Act on the earliest timeout of the waiting ranks."""
        self.deadline_ns = None
        if self._is_over:
            return
        if self._followed is None:
            self.follow(with_bytes=True)  # which also shows in which step each rank waits, and since when
        elif not self._followed.has_bytes:
            self._followed.rebuild(with_bytes=True)
        assert self._followed is not None
        self._followed.expire()

    def waiting_for(self, rank: int) -> Iterable[int]:
        """The ranks that wait for `rank`, or may."""
        return self.arrivals if self._followed is None else self._followed.waiting_for(rank)

    def blockers_of(self, rank: int) -> list[int]:
        """Group ranks that hold up `rank`, for the wait-for graph."""
        known = None if self._followed is None else self._followed.blockers_of(rank)
        return (
            [other for other in range(self.communicator.size) if other not in self.arrivals] if known is None else known
        )

    def has_under_way(self, rank: int) -> bool:
        """True if data of this rank is on the wire: its connections then end with a reset."""
        arrival = self.arrivals.get(rank)
        if arrival is None or arrival.settled is not None:
            return False
        everyone_inside = self.phase is _IN_FLIGHT or (self._followed is not None and self._followed.everyone_inside)
        return everyone_inside and not self.is_held_back(rank)

    def is_held_back(self, rank: int) -> bool:
        """True if the rank's messages do not leave until a fault has struck it."""
        return self.strikes is not None and rank in self.strikes.held_back

    def move_deadline(self, deadline_ns: int | None) -> None:
        """Expire at another moment than before, or never."""
        self.communicator.simulation.move_deadline(self, deadline_ns)

    # -- ends ----------------------------------------------------------------------------------------------------

    def settle(self, rank: int, outcome: Done | Failed) -> None:
        """End a rank's part. Does nothing if it has ended before."""
        arrival = self.arrivals[rank]
        if arrival.settled is not None:
            return
        communicator = self.communicator
        arrival.settled = outcome
        followed = self._followed
        if followed is not None and (timer := followed.timers.pop(rank, None)) is not None:
            timer.cancel()
        work = arrival.work
        work.member.pending.pop(work, None)
        work.blockers = None
        self.unsettled -= 1
        if isinstance(outcome, Done):
            assert followed is not None
            crc = followed.hand_over.finish(rank)
            if self.mismatched and arrival.operation.name not in IN_PLACE:
                work.partial, crc = True, 0
            begin_ns = self.begin_ns if self.begin_ns >= 0 else arrival.time_ns
            work.member.completed(arrival.operation.name, self.sequence, begin_ns, crc)
            error = communicator.backend.algorithm.refused_result(arrival.operation)
            if error is None:
                if self.strikes is not None:
                    self.strikes.change_results(rank)
                work.finish()
            else:
                work.fail(error)
        elif work.process.running:
            if followed is not None:
                followed.hand_over.leave_partial(rank)
            if outcome.text is ABORTED:
                self._end_if_all_settled()
                self._abort(rank, work.process)
                return
            self._report(work, RuntimeError(outcome.text))
        self._end_if_all_settled()
        if self.strikes is not None:
            self.strikes.strike_after(rank)

    def _abort(self, rank: int, process: SimProcess) -> None:
        """Take the process down: it was sent more than it has room for."""
        assert self._followed is not None
        overrun = self._followed.overrun_of(rank)
        self.communicator.unread[rank, overrun.sender] = None
        process.stderr.append(self.communicator.backend.failure.overrun(overrun.sent, overrun.room) + "\n")
        process.kill(signal.SIGABRT)

    def _report(self, work: SimWork, error: BaseException) -> None:
        work.member.failed(work.name, self.sequence, error)
        work.fail(error)

    def _end_if_all_settled(self) -> None:
        if self.unsettled or self.phase is _ENDED:
            return
        self._enter(_ENDED)
        self.move_deadline(None)
        if self._followed is not None:
            self._followed.end()
        elif self._timer is not None:
            self._timer.cancel()
            if self._wire is not None:
                self.communicator.network.withdraw(self._wire)
                self._wire = None
        self.communicator.collectives.pop(self.sequence, None)
