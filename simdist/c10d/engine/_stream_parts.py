"""The calls of ranks whose operations end on streams, and the collectives in which they meet; see `_streamed.py`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from simdist.c10d.calls._filled import change_filled
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Brought, Exchanged, Factor, Payload
from simdist.c10d.calls._read import Change, change_read
from simdist.c10d.calls._unseen import unseen
from simdist.c10d.calls._work import CollectiveRead
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.cluster import Flow as WireFlow
from simdist.device import Mark, block_of, claim, latest, release
from simdist.errors import MismatchError
from simdist.kernel import Task, Timer
from simdist.process import SimProcess

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member
    from simdist.c10d.engine._streamed import Connection

__all__ = ["Part", "StreamCollective"]

Tensor = torch.Tensor


class Part:
    """One rank's call.

    `reads` are tensors of its device that are only read, each with the flat CPU tensor that stands for it in `payload`;
    `writes` those that are filled. `end` is when the rank's share is over.
    """

    def __init__(
        self,
        connection: Connection,
        rank: int,
        operation: Operation,
        payload: Payload,
        begin: Mark,
        reads: Sequence[tuple[Tensor, Tensor]] = (),
        writes: Sequence[Tensor] = (),
        factor: Factor | None = None,
    ) -> None:
        member = connection.communicator.members[rank]
        assert member is not None  # it is calling
        self.connection = connection
        self.rank = rank
        self.member: Member = member
        self.process: SimProcess = member.process
        self.operation = operation
        self.payload = payload
        self.begin = begin
        self.factor = factor  # its operand is multiplied by this before a sum
        self.end = Mark(cause=self)
        self.begun = self.lost = False
        self.awaited = False  # a task of its rank waits until it has begun
        self.sequence = -1  # of its operation in the group
        self.site = ""
        self.whole: StreamCollective | None = None  # None for a message
        self.partners: frozenset[int] | None = None  # the ranks with which it exchanges data; None: all
        self.peer = -1  # of a message
        self.work: Any = None  # of the call
        self.strike: tuple[str, Callable[[], None]] | None = None  # a fault inside it, or after it
        self.change: Change | None = None  # of what it reads
        self.change_result: Change | None = None  # of what it fills
        self._reads = reads
        self._writes = writes
        self._claims: list[Any] = []
        # For claims that read: a weak reference to the block, and its flat tensor.
        self._flats: list[tuple[weakref.ref[object], Tensor]] = []

    @property
    def tensor(self) -> Tensor:
        """The one tensor of its payload."""
        return cast("Tensor", self.payload)

    def claim(self) -> None:
        """Claim the memory that it will read and write: it does not begin at once."""
        # From here on it keeps no storage of a device alive: memory that the program gives up is free.
        for tensor, flat in self._reads:
            if tensor.is_cuda:
                self._claims.append(claim(tensor, self, writes=False))
                self._flats.append((weakref.ref(block_of(tensor)), flat))
        for tensor in self._writes:
            if tensor.is_cuda:
                self._claims.append(claim(tensor, self, writes=True))
        self._reads = self._writes = ()

    def change_read(self) -> None:
        """Change the input of its operation, as a verdict demands. Later calls of the device report errors of this."""
        self._change(change_read, self.change)

    def change_filled(self) -> None:
        """Change the output of its operation, likewise."""
        self._change(change_filled, self.change_result)

    def _change(self, apply: Callable[..., None], change: Change | None) -> None:
        try:
            apply(change, self.operation, self.payload, self.rank)
        except Exception as error:
            self.connection.streams_of(self.rank).error = error
            self.process.wake()

    def settle_claims(self) -> None:
        """Release its claims: it has begun, or never will."""
        if self._claims:
            release(self._claims, self)
        self.payload = None  # like `forget`; hot
        self._reads = self._writes = ()
        self._flats = []
        if self.awaited:
            self.process.wake()

    def forget(self) -> None:
        """Drop its tensors, so that no reference to it keeps their memory."""
        self.payload = None
        self._reads = self._writes = ()
        self._claims, self._flats = [], []

    # -- for memory that is touched ----------------------------------------------------------------------------------

    def copy_inputs(self, block: object) -> None:
        """Copy inputs that it only reads, because the program is about to read or change them."""
        copies = {id(flat): flat.clone() for reference, flat in self._flats if reference() is block}
        self.payload = _replaced(self.payload, copies)

    def wait_until_begun(self) -> None:
        """Park the calling task of its rank until the memory holds the result."""
        process = self.process
        simulation = process.simulation
        task = simulation.current
        if task is None or task.context is not process or not simulation.owns_this_thread():
            return
        self.awaited = True
        while not self.begun:
            simulation.park(self)
            process.drain()
            streams = self.connection.streams_of(self.rank)
            if streams.error is not None:
                raise streams.error

    # -- for reports ---------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """The operation's name in reports."""
        name = self.operation.name
        group = self.connection.communicator.name
        if self.whole is None:
            return f"{name}({'dst' if name == 'send' else 'src'}={self.peer}) in group {group!r}"
        return f"{name} #{self.sequence} in group {group!r}"

    def waits_for(self) -> Iterable[Task]:
        """The tasks of the ranks that have not done their part."""
        missing = [self.peer] if self.whole is None else self.whole.missing_for(self)
        found: list[Task] = []
        for rank in missing:
            member = self.connection.communicator.members[rank]
            if member is not None:
                found += member.process.tasks
        if self.whole is not None and not missing:
            causes = [part.begin.cause for part in self.whole.parts.values() if part.begin.at_ns is None]
            found += [task for cause in causes if cause is not None for task in cause.waits_for()]
        return found


def _size(part: Part) -> int:
    return part.operation.size


def _replaced(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return copies.get(id(value), value)
    if isinstance(value, list):
        return [_replaced(each, copies) for each in value]
    return type(value)(*(_replaced(each, copies) for each in value)) if isinstance(value, tuple) else value


class StreamCollective:
    """The parts that meet in one collective of a connection.

    Ranks that exchange nothing, directly or through others, do not wait for each other. In an all_to_all with empty
    messages, the ranks that exchange data become a collective of their own as soon as all of them have called
    (`_part_off`).
    """

    def __init__(self, connection: Connection, index: int, ranks: Sequence[int]) -> None:
        self.connection = connection
        self.index = index
        self.ranks = tuple(ranks)
        self.parts: dict[int, Part] = {}  # by group rank, in the order of the calls
        self.begin_ns = -1
        self.lost = False
        self.stuck = False  # calls did not fit, and some of them never end
        self._whole: StreamCollective = self  # the collective from which this one was parted off, or itself
        self._apart = 0  # ranks that have called, and do not wait for any rank that has not
        self._running = 0  # collectives that were parted off, and have not ended
        self._checksum = 0  # of the data of those that have ended
        self._timer: Timer | None = None  # of its end
        self._slow_ns = 0  # how much later the end is because the bandwidth between its ranks is limited
        self._wire: WireFlow | None = None

    @property
    def missing(self) -> list[int]:
        """The ranks that have not called it."""
        return [] if self._apart else [rank for rank in self.ranks if rank not in self.parts]

    @property
    def is_endless(self) -> bool:
        """True if some of its calls do not end under the present conditions."""
        return bool(self._apart and self.parts) or bool(self.missing) or self.lost or self.stuck

    def missing_for(self, part: Part) -> list[int]:
        """The ranks on which a part depends and that have not called."""
        return [rank for rank in self._reached_from(part) if rank not in self.parts]

    def needs(self, part: Part, rank: int) -> bool:
        """True if a part waits for data of a rank, directly or through others."""
        return part.partners is None or rank in self._reached_from(part)

    def _reached_from(self, part: Part) -> list[int]:
        """The ranks that a part waits for, those that they wait for, and so on; including its own."""
        found, ahead = {part.rank: None}, [part]
        while ahead:
            partners = ahead.pop().partners
            for rank in self.ranks if partners is None else sorted(partners):
                if rank not in found:
                    found[rank] = None
                    if rank in self.parts:
                        ahead.append(self.parts[rank])
        return sorted(found)

    def join(self, part: Part) -> None:
        """Add a rank's call."""
        part.whole = self
        self.parts[part.rank] = part
        if part.partners is not None or self._apart:
            self._part_off(part)
        elif len(self.parts) == len(self.ranks) and not self.lost:
            self._start()  # what depends on this part depends on all: no smaller set can begin now
        if not part.begun:
            part.claim()

    def _start(self) -> None:
        begins = [part.begin for part in self.parts.values()]
        known = [begin.at_ns for begin in begins if begin.at_ns is not None]
        if len(known) == len(begins):
            self._plan(max(known))
            return
        ready = latest(begins)
        ready.when_known(lambda: self._plan(ready.at_ns or 0))

    def _part_off(self, part: Part) -> None:
        """Start the collective of a part and all that it depends on, if they have called."""
        reached = self._reached_from(part)
        if any(rank not in self.parts or rank in self.connection.gone for rank in reached):
            return
        if len(reached) == len(self.ranks):
            self._start()
            return
        apart = StreamCollective(self.connection, self.index, reached)
        apart._whole = self
        for rank in reached:
            apart.parts[rank] = self.parts.pop(rank)
            apart.parts[rank].whole = apart
        self._apart += len(reached)
        self._running += 1
        self.connection.collectives[self.index, reached[0]] = apart
        apart._start()

    def _plan(self, ready_ns: int) -> None:
        """Plan the begin: all streams get there at `ready_ns`, which may lie ahead."""
        if self.lost or self.begin_ns >= 0:
            return
        simulation = self.connection.communicator.simulation
        start_ns = self.connection.open_from_ns(max(ready_ns, simulation.now_ns))
        if start_ns is None or start_ns > max(ready_ns, simulation.now_ns):
            self.connection.communicator.failure.cut_off(self.connection, list(self.parts.values()))
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
        parts = [self.parts[rank] for rank in self.ranks]
        calls = self._calls(parts)
        meets = communicator.streamed.meets(calls)
        operation = parts[0].operation if self._whole is self else max(parts, key=_size).operation
        if communicator.strict and not (meets and all(part.operation.fits(operation, strict=True) for part in parts)):
            self._disagree(parts)
            return
        self.begin_ns = simulation.now_ns
        for part in parts:
            if part.change is not None:
                part.change_read()
        if connection.left or not meets:
            self._collide(parts)
            return
        bus = simulation.bus
        if bus.heard and bus.hears(CollectiveRead):
            bus.report(CollectiveRead([part.work for part in parts if part.work is not None]))
        try:
            crc = communicator.streamed.execute(calls)
        except RuntimeError as error:  # torch cannot execute the operation with these tensors
            self._fail(parts, error)
            return
        for part in parts:
            part.begun = True
            if part.change_result is not None:
                part.change_filled()
            part.settle_claims()
        cost = communicator.wire_cost(operation)
        end_ns = simulation.now_ns + cost.duration_ns
        self._slow_ns = 0
        if communicator.disturbed:
            end_ns += connection.delay_ns(simulation.now_ns)
            self._slow_ns = connection.slow_ns(cost, end_ns - cost.wire_ns)
        self._timer = simulation.call_at(end_ns + self._slow_ns, lambda: self._end(crc))
        if cost.wire_ns >= LIGHT_NS:
            self._wire = communicator.network.begin(
                end_ns - cost.wire_ns, end_ns, cost.byte_ns, cost.load, lambda: self._move_end(crc)
            )
        self._strike_during(parts, end_ns + self._slow_ns)

    def _calls(self, parts: Sequence[Part]) -> list[Brought]:
        """The calls of all ranks of the connection; ranks that take no part have calls with nothing to exchange."""
        calls = [Brought(part.operation, part.payload, part.factor) for part in parts]
        if len(calls) == len(self.connection.ranks):
            return calls
        nothing = [torch.empty(0)] * len(self.connection.ranks)
        by_rank = dict(zip(self.ranks, calls, strict=True))
        absent = Brought(parts[0].operation, Exchanged(nothing, nothing))
        return [by_rank.get(rank, absent) for rank in self.connection.ranks]

    def _strike_during(self, parts: Sequence[Part], end_ns: int) -> None:
        simulation = self.connection.communicator.simulation
        for part in parts:
            if part.strike is not None and part.strike[0] == "during":
                simulation.call_at((simulation.now_ns + end_ns) // 2, part.strike[1])

    def _collide(self, parts: Sequence[Part]) -> None:
        """Execute calls that do not fit, or that follow calls that did not: some end, all at once; others never do."""
        connection = self.connection
        communicator = connection.communicator
        simulation = communicator.simulation
        collision = communicator.streamed.collide(self._calls(parts), connection.left)
        places = {rank: place for place, rank in enumerate(connection.ranks)}
        done = [part for part in parts if places[part.rank] in collision.done]
        for part in done:
            part.begun = True
            part.settle_claims()
        duration_ns = max((communicator.wire_cost(part.operation).duration_ns for part in done), default=0)
        end_ns = simulation.now_ns + duration_ns
        if communicator.disturbed:
            end_ns += connection.delay_ns(simulation.now_ns)
        self.stuck = len(done) < len(parts)
        self._timer = simulation.call_at(
            end_ns, (lambda: self._end_some(done)) if self.stuck else (lambda: self._end(collision.checksum))
        )
        self._strike_during(done, end_ns)
        for source, target, size, room in collision.cut:
            cut = self.parts[connection.ranks[target]]
            communicator.failure.cut_short(connection, cut, connection.ranks[source], size, room)

    def _end_some(self, parts: Sequence[Part]) -> None:
        self._timer = None
        for part in parts:
            part.end.settle(self.connection.communicator.simulation.now_ns)
        for part in parts:
            if part.strike is not None and part.strike[0] == "after":
                part.strike[1]()

    def _disagree(self, parts: Sequence[Part]) -> None:
        """Fail calls that do not fit with an error, in a strict group."""
        name = self.connection.communicator.name
        lines = [f"ranks do not agree on collective #{parts[0].sequence} in group {name!r}:"]
        lines += [f"  rank {part.process.rank} called {part.operation.describe()}{part.site}" for part in parts]
        self._fail(parts, MismatchError("\n".join(lines)))

    def _fail(self, parts: Sequence[Part], error: BaseException) -> None:
        """Give its ranks the error where they wait for their devices: it cannot run."""
        self.lose()
        for part in parts:
            self.connection.streams_of(part.rank).error = error
            part.end.settle(self.connection.communicator.simulation.now_ns)
            part.process.wake()

    def _move_end(self, crc: int) -> None:
        assert self._wire is not None
        assert self._timer is not None
        self._timer.cancel()
        simulation = self.connection.communicator.simulation
        self._timer = simulation.call_at(self._wire.end_ns + self._slow_ns, lambda: self._end(crc))

    def _end(self, crc: int) -> None:
        connection = self.connection
        communicator = connection.communicator
        simulation = communicator.simulation
        self._wire = self._timer = None
        parts = [self.parts[rank] for rank in self.ranks]
        whole = self._whole
        if whole is not self:
            connection.collectives.pop((self.index, self.ranks[0]), None)
            whole._running -= 1
            whole._checksum ^= crc
            whole.begin_ns, crc = max(whole.begin_ns, self.begin_ns), whole._checksum
        if whole._apart in (0, len(whole.ranks)) and not whole._running:
            connection.collectives.pop(self.index, None)
            communicator.note_completed(parts[0].operation, parts[0].sequence, whole.begin_ns, crc)
        for part in parts:
            part.end.settle(simulation.now_ns)
        for part in parts:
            if part.strike is not None and part.strike[0] == "after":
                part.strike[1]()

    def lose(self) -> None:
        """Make it never end: a rank is gone, or its calls do not fit."""
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._wire is not None:
            self.connection.communicator.network.withdraw(self._wire)
            self._wire = None
