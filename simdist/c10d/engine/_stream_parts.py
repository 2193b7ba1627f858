"""The calls of ranks whose operations end on streams, and the collectives that they meet in; see `_streamed.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.engine._read import change_read
from simdist.c10d.engine._wire import LIGHT_NS
from simdist.c10d.surface._modes import unseen
from simdist.c10d.surface._operation import Operation
from simdist.cluster import Flow as WireFlow
from simdist.device import Mark, block_of, claim, latest, release
from simdist.errors import MismatchError
from simdist.kernel import Task, Timer
from simdist.process import SimProcess
from simdist.records import completed

if TYPE_CHECKING:
    from simdist.c10d.engine._streamed import Connection

__all__ = ["Part", "StreamCollective"]

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
        self.change: Callable[[Any], Any] | None = None  # of what it reads
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

    def change_read(self) -> None:
        """Change what its operation reads, if a verdict wants it. Calls of the device tell what goes wrong."""
        if self.change is not None:
            try:
                change_read(self.change, self.operation, self.inputs, self.rank)
            except Exception as error:
                self.connection.streams_of(self.rank).error = error

    def settle_claims(self) -> None:
        """It has begun, or never will."""
        release(self._claims, self)
        self.forget()
        self.process.wake()

    def forget(self) -> None:
        """It needs its tensors no longer: nothing that is kept of it may keep their memory."""
        self.inputs = None
        self._reads = self._writes = ()
        self._claims = []

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
        self.stuck = False  # calls did not fit, and some of them never end
        self._timer: Timer | None = None  # of its end
        self._wire: WireFlow | None = None

    @property
    def missing(self) -> list[int]:
        """Those who have not called it."""
        return [rank for rank in self.connection.ranks if rank not in self.parts]

    @property
    def is_endless(self) -> bool:
        """True if some of its calls do not end, as things stand."""
        return bool(self.missing) or self.lost or self.stuck

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
        parts = [self.parts[rank] for rank in connection.ranks]
        calls = [(part.operation, part.inputs, part.factor) for part in parts]
        meets = communicator.streamed.meets(calls)
        operation = parts[0].operation
        if communicator.strict and not (meets and all(part.operation.fits(operation, strict=True) for part in parts)):
            self._disagree(parts)
            return
        self.begin_ns = simulation.now_ns
        for part in parts:
            part.change_read()
        if connection.left or not meets:
            self._collide(parts)
            return
        crc = communicator.streamed.execute(calls)
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
        self._strike_during(parts, end_ns)

    def _strike_during(self, parts: Sequence[Part], end_ns: int) -> None:
        simulation = self.connection.communicator.simulation
        for part in parts:
            if part.strike is not None and part.strike[0] == "during":
                simulation.call_at((simulation.now_ns + end_ns) // 2, part.strike[1])

    def _collide(self, parts: Sequence[Part]) -> None:
        """The calls do not fit, or those before did not: some end, all at once; others never do."""
        connection = self.connection
        communicator = connection.communicator
        simulation = communicator.simulation
        calls = [(part.operation, part.inputs, part.factor) for part in parts]
        collision = communicator.streamed.collide(calls, connection.left)
        done = [part for place, part in enumerate(parts) if place in collision.done]
        for part in done:
            part.begun = True
            part.settle_claims()
        duration_ns = max((communicator.wire_cost(part.operation).duration_ns for part in done), default=0)
        end_ns = simulation.now_ns + duration_ns + connection.delay_ns(simulation.now_ns)
        self.stuck = len(done) < len(parts)
        self._timer = simulation.call_at(
            end_ns, (lambda: self._end_some(done)) if self.stuck else (lambda: self._end(collision.checksum))
        )
        self._strike_during(done, end_ns)
        for source, target, size, room in collision.cut:
            communicator.failure.cut_short(connection, parts[target], parts[source].rank, size, room)

    def _end_some(self, parts: Sequence[Part]) -> None:
        self._timer = None
        for part in parts:
            part.end.settle(self.connection.communicator.simulation.now_ns)
        for part in parts:
            if part.strike is not None and part.strike[0] == "after":
                part.strike[1]()

    def _disagree(self, parts: Sequence[Part]) -> None:
        """The calls do not fit, and a strict group tells its ranks."""
        communicator = self.connection.communicator
        self.lose()
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
