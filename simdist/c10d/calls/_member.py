"""One rank's end of a group, and the one life cycle of a call: called, admitted, issued, settled.

Every call of every backend goes this way, a collective, a message and a monitored barrier alike:
- `called`: announced before any counter moves or anyone learns of it; a fault in its place leaves no trace.
- `issued`, or `posted` for calls that are counted apart from collectives: it takes its number, and becomes the rank's
  last operation; its listeners learn of it; listeners that look at its tensors admit it; it is counted and recorded.
- `completed`, `delivered` or `failed`: its end is recorded, unless the group serves another one.
The engine decides what happens between, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from simdist.c10d.calls._events import OperationAdmitted, OperationCalled
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Outputs, Payload, Scattered
from simdist.c10d.calls._read import Change, change_read
from simdist.c10d.calls._table import FILLING
from simdist.errors import SimdistError
from simdist.process import SimProcess, Strike, carry_out, refusal_of
from simdist.records import completed, failed, issued, message_completed, message_issued

if TYPE_CHECKING:
    from simdist.c10d.calls._work import SimWork
    from simdist.c10d.calls._worker_threads import WorkerThreads
    from simdist.c10d.engine import Communicator

__all__ = ["Member", "MembersAwaited", "MembersMet", "Queued"]

_TAKES = ("change", "change_result")


def _do_nothing(_: object = None) -> None:
    pass


class Queued(NamedTuple):
    """A collective that a rank queued, for its flight recorder; kept as a plain tuple of the numbers."""

    place: int  # index of the group among those of the process
    operation: int  # its index among those of the communicator
    sequence: int  # of the collective
    number: int  # the group's sequence number as torch counts it, this call included
    messages: int  # how many of these are messages
    now_ns: int
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class MembersAwaited:
    """Reported: a rank begins to wait for all members: it connects the group (`number` -1), or monitors a barrier."""

    process: SimProcess
    communicator: Communicator
    number: int


@dataclass(frozen=True, slots=True)
class MembersMet:
    """Reported: all members have arrived. The fields are those of `MembersAwaited`."""

    process: SimProcess
    communicator: Communicator
    number: int


class Member:
    """One rank's end of a communicator."""

    def __init__(self, communicator: Communicator, rank: int, process: SimProcess) -> None:
        self.communicator = communicator
        self.rank = rank  # in the group
        self.process = process
        self.sequence = 0  # collectives issued
        self.posted = 0  # messages, those inside operations left out
        self.barriers = 0  # monitored barriers, which are counted apart
        self.number = 0  # the group's sequence number in torch's counting: operations of any kind, each part counted
        self.messages = 0  # how many of them are the caller's sends and receives
        self.parts = 0  # collectives that are parts of another one
        self.on_queued: Callable[[tuple[int, ...]], None] | None = None  # called with the fields of a `Queued`
        self.place = 0  # index of the group among those of its process
        self.pending: dict[SimWork, None] = {}  # issued and not settled
        self.threads = communicator.backend.threads  # at most as many of its collectives are at work
        self.worker_threads: WorkerThreads[SimWork] | None = None  # made when a collective first finds no thread
        self.connect: Callable[[], None] = _do_nothing  # called before its first operation
        self.left = False  # the process ended, or destroyed the group
        self.change: Change | None = None  # of the announced operation's input; removed by the reader
        self.change_result: Change | None = None  # of its output; removed by the code that runs it
        # The strike of the next collective (or none: ()), if it was announced ahead of the call.
        self.ahead: Strike | tuple[()] | None = None

    # -- called ------------------------------------------------------------------------------------------------------

    def call_ahead(self, name: str) -> None:
        """Announce the next collective ahead of the call, because something comes before it.

        Raises:
            Exception: a fault raises it in place of the call.
        """
        if self.communicator.simulation.bus.active:
            self.ahead = self.called(name, self.sequence) or ()

    def called(self, name: str, sequence: int) -> Strike | None:
        """Announce a call before anything of it has happened, and do what must be done before it.

        Returns the strike that is still to come, and when: during or after the operation.

        Raises:
            Exception: the verdict raises it in place of the operation. No counter has moved then: it is as if the
                program had never made the call.
        """
        if self.ahead is not None:
            ahead, self.ahead = self.ahead, None
            return ahead or None
        communicator = self.communicator
        simulation = communicator.simulation
        if not communicator.counted or not simulation.bus.wants(OperationCalled):
            return None
        simulation.check()
        process = self.process
        before = process.last_operation
        process.last_operation = (name, sequence, communicator.name)
        verdict = simulation.bus.announce(OperationCalled(process, name, communicator.name, sequence))
        self.change, self.change_result = verdict.change, verdict.change_result
        try:
            return carry_out(process, verdict, name, takes=_TAKES if name in FILLING else _TAKES[:1])
        except BaseException as error:
            if error is verdict.error:
                process.last_operation = before
            raise

    def require_caller(self) -> None:
        """Refuse a call by another rank, which found the group object in a variable that ranks share.

        Raises:
            SimdistError: the caller is another rank.
        """
        task = self.communicator.simulation.check()
        if task.context is not self.process:
            self.refuse_stranger(task.context)

    def refuse_stranger(self, caller: object) -> NoReturn:
        """Refuse a caller that is known to be another rank.

        Raises:
            SimdistError: always.
        """
        assert isinstance(caller, SimProcess)
        if caller.parent is not None:
            raise SimdistError(
                f"a child process of rank {caller.rank} uses the rank's group {self.communicator.name!r}; connections "
                "do not survive a fork: let the parent call, or make a group in the child"
            )
        raise SimdistError(
            f"rank {caller.rank} uses rank {self.process.rank}'s object of group {self.communicator.name!r}; ranks "
            "share what is global in a module or closed over, and each process has group objects of its own: keep them "
            "in local variables or in objects that each rank makes, or give each rank its own modules: isolate=True"
        )

    # -- issued ------------------------------------------------------------------------------------------------------

    def issued(
        self,
        operation: Operation,
        payload: Payload,
        outputs: Outputs,
        timeout_ns: int,
        asynchronous: bool,
        refused: bool = False,
        operands: object = None,
    ) -> int:
        """Number an announced collective, and have it admitted, counted and recorded; returns the number.

        A collective that the backend `refused` is not admitted. `operands` are those of a reduction; if they are given,
        the code that launches it changes the payload later, as a verdict demands.

        Raises:
            Exception: a listener does not admit it.
        """
        communicator, process = self.communicator, self.process
        simulation = communicator.simulation
        sequence = self.sequence
        self.sequence = sequence + 1
        name = operation.name
        process.last_operation = (name, sequence, communicator.name)
        now = simulation.now_ns
        bus = simulation.bus
        # The fields of a `Queued`, as a plain tuple: see there.
        on_queued = self.on_queued
        if on_queued is not None:
            on_queued((self.place, operation.index, sequence, self.number, self.messages, now, timeout_ns))
        if bus.active and not refused:
            later = operands is not None
            if bus.wants(OperationAdmitted):
                if not later:
                    operands = payload.given if name == "reduce_scatter" and type(payload) is Scattered else outputs
                error = refusal_of(bus, OperationAdmitted(process, name, operation.reduction, operands, outputs))
                if error is not None:
                    raise error
            if not later and self.change is not None:
                change, self.change = self.change, None
                change_read(change, operation, payload, self.rank)
        if communicator.counted:
            process.operations += 1
            bus.record(
                issued(
                    now,
                    process.rank,
                    name,
                    communicator.name,
                    sequence,
                    operation.size,
                    operation.dtype_name,
                    operation.shape,
                    operation.root,
                    asynchronous,
                )
            )
        return sequence

    def post(
        self,
        name: str,
        size: int = 0,
        dtype_name: str = "",
        shape: tuple[int, ...] = (),
        peer: int = -1,
        tag: Hashable = 0,
    ) -> int:
        """Number, count and record a message or a monitored barrier, like `issued`; returns the number."""
        communicator, process = self.communicator, self.process
        simulation = communicator.simulation
        asynchronous = name != "monitored_barrier"
        if asynchronous:
            sequence = self.posted
            self.posted = sequence + 1
        else:
            sequence = self.barriers
            self.barriers = sequence + 1
        process.last_operation = (name, sequence, communicator.name)
        process.operations += communicator.counted
        simulation.bus.record(
            message_issued(
                simulation.now_ns,
                process.rank,
                name,
                communicator.name,
                sequence,
                size,
                dtype_name,
                shape,
                peer,
                asynchronous,
                tag,
            )
        )
        return sequence

    # -- settled -----------------------------------------------------------------------------------------------------

    def completed(self, name: str, sequence: int, begin_ns: int, crc: int) -> None:
        """Record that this rank's part of a collective went well."""
        communicator = self.communicator
        if communicator.counted:
            bus, now = communicator.simulation.bus, communicator.simulation.now_ns
            bus.record(completed(now, self.process.rank, name, communicator.name, sequence, begin_ns, crc))

    def delivered(self, name: str, sequence: int, begin_ns: int, crc: int, peer: int | None = -1) -> None:
        """Record that a message or a monitored barrier went well."""
        simulation, group = self.communicator.simulation, self.communicator.name
        simulation.bus.record(
            message_completed(simulation.now_ns, self.process.rank, name, group, sequence, begin_ns, crc, peer)
        )

    def failed(self, name: str, sequence: int, error: BaseException) -> None:
        """Record that an operation of this rank failed."""
        communicator = self.communicator
        if communicator.counted:
            bus, now = communicator.simulation.bus, communicator.simulation.now_ns
            said = type(error).__name__, str(error)
            bus.record(failed(now, self.process.rank, name, communicator.name, sequence, *said))

    def on_end(self, process: SimProcess) -> None:
        """Leave the group: the process has ended."""
        self.communicator.leave(self)
