"""One rank's end of a group, and the one life of a call: called, admitted, issued, settled.

Every call of every backend goes this way, a collective, a message and a monitored barrier alike:
- `called`: announced before any counter moves or anyone hears of it; a fault in its place leaves no trace.
- `issued`, or `posted` for what is counted apart from collectives: it takes its number, and becomes the rank's last
  operation; its listeners hear of it; those who look at its tensors admit it; it is counted and recorded.
- `completed`, `delivered` or `failed`: its end is recorded, unless the group serves another one.
What happens between, and when, is the engine's.
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
    from simdist.c10d.engine import Communicator

__all__ = ["Member", "MembersAwaited", "MembersMet", "Queued"]

_TAKES = ("change", "change_result")


def _do_nothing(_: object = None) -> None:
    pass


class Queued(NamedTuple):
    """A collective that a rank queued, as its flight recorder has to know it; kept as a plain tuple of the numbers."""

    place: int  # of the group among those of the process
    operation: int  # its index among those of the communicator
    sequence: int  # of the collective
    number: int  # the group's sequence number as torch counts it, this call included
    messages: int  # among these
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
    """Reported: all of them have arrived. The fields are those of `MembersAwaited`."""

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
        self.number = 0  # the group's sequence number as torch counts it: operations of any kind, by their parts
        self.messages = 0  # those of them that are the caller's sends and receives
        self.parts = 0  # collectives that stand for another's parts
        self.on_queued: Callable[[tuple[int, ...]], None] | None = None  # given the fields of a `Queued`
        self.place = 0  # of the group among those of its process
        self.pending: dict[SimWork, None] = {}  # issued and not settled
        self.connect: Callable[[], None] = _do_nothing  # to call before its first operation
        self.left = False  # the process ended, or destroyed the group
        self.change: Change | None = None  # of what the announced operation reads; who reads it takes it
        self.change_result: Change | None = None  # of what it fills; who runs it takes it
        # What the announcement of the next collective has left to strike (or nothing: ()), if it was made ahead of it.
        self.ahead: Strike | tuple[()] | None = None

    # -- called ------------------------------------------------------------------------------------------------------

    def call_ahead(self, name: str) -> None:
        """Announce the next collective ahead of the call: something comes before it.

        Raises:
            Exception: a fault has it in place of the call.
        """
        if self.communicator.simulation.bus.active:
            self.ahead = self.called(name, self.sequence) or ()

    def called(self, name: str, sequence: int) -> Strike | None:
        """Announce a call before anything of it has happened, and do what must be done before it.

        Returns what must still strike, and when: during or after the operation.

        Raises:
            Exception: what the verdict has in place of the operation. No counter has moved then: it is as if the
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
        """Refuse a call by another rank, which found the group object where all ranks find the same.

        Raises:
            SimdistError: it is one.
        """
        task = self.communicator.simulation.check()
        if task.context is not self.process:
            self.refuse_stranger(task.context)

    def refuse_stranger(self, caller: object) -> NoReturn:
        """Likewise, of a caller that is known to be one.

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
            "in local variables, or in objects that each rank makes for itself"
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
        """A collective that was announced takes its number, is admitted, counted and recorded; the number.

        One that the backend `refused` is not admitted. `operands` are those of a reduction; if they are given, what a
        verdict changes of the payload is changed later, by who launches it.

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
        # What a `Queued` holds, as a plain tuple: see there.
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
        """As `issued`, of a message or a monitored barrier."""
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
        """This rank's part of a collective went well."""
        communicator = self.communicator
        if communicator.counted:
            bus, now = communicator.simulation.bus, communicator.simulation.now_ns
            bus.record(completed(now, self.process.rank, name, communicator.name, sequence, begin_ns, crc))

    def delivered(self, name: str, sequence: int, begin_ns: int, crc: int, peer: int | None = -1) -> None:
        """A message, or a monitored barrier, went well."""
        simulation, group = self.communicator.simulation, self.communicator.name
        simulation.bus.record(
            message_completed(simulation.now_ns, self.process.rank, name, group, sequence, begin_ns, crc, peer)
        )

    def failed(self, name: str, sequence: int, error: BaseException) -> None:
        """An operation of this rank failed."""
        communicator = self.communicator
        if communicator.counted:
            bus, now = communicator.simulation.bus, communicator.simulation.now_ns
            said = type(error).__name__, str(error)
            bus.record(failed(now, self.process.rank, name, communicator.name, sequence, *said))

    def on_end(self, process: SimProcess) -> None:
        """The process has ended."""
        self.communicator.leave(self)
