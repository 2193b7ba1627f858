"""One rank's ProcessGroupNCCL as far as it launches: streams, messages, and blocks of coalesced calls."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._membership import NcclMember
from simdist.c10d.backends.nccl._options import NcclOptions
from simdist.c10d.backends.nccl._timing import estimated_us
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.backends.nccl.kernels._nan import device_assert, holds_nan
from simdist.c10d.backends.nccl.watch._recorder import Entry, stack
from simdist.c10d.calls import KERNELS, MESSAGES
from simdist.c10d.calls._events import WorkIssued
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Payload
from simdist.c10d.calls._work import SimWork
from simdist.c10d.engine._stream_parts import Part
from simdist.c10d.engine._stream_work import StreamWork
from simdist.c10d.engine._streamed import Connection
from simdist.c10d.surface import _memory
from simdist.device import current_stream, latest, memory_of
from simdist.frames import user_frame, user_line
from simdist.inside.torch import Place
from simdist.process import Strike

if TYPE_CHECKING:
    from simdist.c10d.calls._member import Member

__all__ = ["Call", "NcclGroup", "flat"]

Tensor = torch.Tensor
_MOST_LAUNCHED = 1024  # that have not ended: a device takes no more, and the host waits


def flat(tensor: Tensor) -> Tensor:
    """The memory of a device's tensor as one dimension of CPU memory."""
    return _memory.flat(memory_of(tensor.data))


@dataclass(slots=True, eq=False)
class Call:
    """One call of an operation, with what the data plane wants of it, until it is launched.

    `reads` are tensors that are only read, each with what stands for it in `payload`; `writes` are filled.
    """

    operation: Operation
    payload: Payload
    reads: list[tuple[Tensor, Tensor]]
    writes: list[Tensor]
    reduction_operands: Any = ()
    factor: Any = None
    peer: int = -1
    partners: frozenset[int] | None = None  # the ranks that it exchanges anything with; None: all
    sequence: int = -1
    strike: Strike | None = None
    change: Callable[[Any], Any] | None = None


@dataclass(slots=True)
class _Block:
    """Calls between `_start_coalescing` and `_end_coalescing`: they are launched together."""

    calls: list[Call] = field(default_factory=list)
    connection: Connection | None = None
    outputs: list[Any] = field(default_factory=list)
    has_collectives: bool = False
    has_messages: bool = False
    asynchronous: bool = False
    limit_ns: int = 0


class NcclGroup(NcclMember):
    """A group whose calls are launched on devices."""

    def __init__(self, member: Member, store: Any, size: int, options: NcclOptions) -> None:
        super().__init__(member, store, size, options)
        self._block: _Block | None = None
        self._nan_check = self.environment.nan_check
        self.shelf: list[list[Tensor]] = []  # of works that are over: the next call lets their tensors go
        self._estimated: list[Operation] | None = None  # calls that do nothing, between two ends of an estimate

    def announce(self, name: str) -> None:
        """Announce the next collective ahead of the call: something comes before it.

        Raises:
            Exception: a fault has it in place of the call.
        """
        self._member.require_caller()
        self._member.call_ahead(name)

    def _called(self, name: str) -> Strike | None:
        member = self._member
        if member.ahead is None:
            member.require_caller()
        return member.called(name, member.sequence) if self._communicator.simulation.bus.active else None

    def _collective(
        self,
        name: str,
        kind: tuple[str, str],
        make: Callable[[], list[Call]],
        inputs: list[Tensor],
        outputs: list[Tensor],
        opts: Any,
        *,
        blocks: bool = False,
        inner: tuple[str, Sequence[tuple[Tensor, Tensor]]] | None = None,
    ) -> SimWork | None:
        """Launch a collective, whose calls `make` makes once its communicator is there; one call, or several in one.

        `kind` is what torch calls it, in messages and in the recorder. `inner` says what torch makes it of: the
        recorder has those calls, one for each pair of an input and an output, before that of them all.
        """
        index = inputs[0].get_device()
        if self._estimated is not None:
            self._connection(index)
            self._estimated += [call.operation for call in make()]
            return self._waits_for_nothing(name, outputs)
        strike = self._called(name)
        connection = self._connection(index)
        asynchronous = getattr(opts, "asyncOp", True)
        limit_ns = self._timeout_ns  # torch takes no other
        member = self._member
        block = self._block
        if block is None or not block.has_collectives:  # those of a block share one number
            self._numbers = self._numbers[0] + 1, self._numbers[1]
            member.number += 1
        if inner is None:
            entry = self._record(kind[1], inputs, outputs, is_message=False)
        else:
            for given, filled in inner[1]:
                self._record(inner[0], [given], [filled], is_message=False)
            entry = self._record_block(kind[1], is_message=False) if block is None else None
        calls = make()
        if self.preferences is not None and self._size > 1:
            for call in calls:
                self.preferences.require(call.operation)
        for call in calls:
            call.sequence = member.issued(
                call.operation, None, outputs, limit_ns, asynchronous, operands=call.reduction_operands
            )
        calls[0].strike, calls[0].change = strike, member.taken_change()
        self._look_for_nan(connection, calls)
        if block is not None:
            block.calls += calls
            block.connection = connection
            block.outputs += outputs
            block.has_collectives = True
            block.asynchronous = block.asynchronous or asynchronous
            block.limit_ns = limit_ns
            return self._waits_for_nothing(name, outputs)
        work = self._launch(
            *(connection, calls, name, kind[0], inputs, outputs, limit_ns, entry),
            asynchronous=asynchronous,
            blocks=blocks,
        )
        if inner is not None:
            work.numel_in = work.numel_out = 0
        elif kind[0] == "COALESCED":
            work.numel_in, work.numel_out = inputs[0].numel(), outputs[0].numel()
        return work if asynchronous else None

    def _record(self, name: str, inputs: list[Tensor], outputs: list[Tensor], *, is_message: bool) -> Entry | None:
        self._operations += 1
        return self._noted(name, inputs, outputs, is_message=is_message)

    def _record_block(self, name: str, *, is_message: bool) -> Entry | None:
        """Record what launches the calls of a block, which is no operation of its own."""
        return self._noted(name, [], [], is_message=is_message)

    def _noted(self, name: str, inputs: list[Tensor], outputs: list[Tensor], *, is_message: bool) -> Entry | None:
        recorder = self._nccl.recorder
        if not recorder.limit:
            return None
        collectives, messages = self._numbers
        numbers = collectives, messages, self._operations
        dtype = str(inputs[0].dtype).removeprefix("torch.") if inputs else ""
        given = [list(tensor.shape) for tensor in inputs]
        filled = [list(tensor.shape) for tensor in outputs]
        now_ns, frames, limit_ns = self._communicator.simulation.now_ns, stack(), self._timeout_ns
        return recorder.add(self, numbers, name, given, filled, dtype, now_ns, limit_ns, is_message, frames)

    def _waits_for_nothing(self, name: str, outputs: list[Tensor]) -> SimWork:
        """The work of a call inside a block, which is not launched yet: only that of the block is worth waiting for."""
        work = SimWork.make(self._member, name, -1, outputs)
        work.done = True
        return work

    def _message(self, kind: str, tensors: Any, peer: int, tag: int) -> SimWork | None:
        """Launch a send or a receive; in a block, remember it. The tag means nothing to NCCL."""
        tensor = _arguments.single(tensors, message=True)
        strike = self._called(kind)
        block, index = self._block, tensor.get_device()
        if block is None and peer == self.rank():
            raise self._self_message()
        connection = self._connection(index) if block is not None else self._pair(peer, index)
        data = flat(tensor)
        _arguments.check_type(kind, tensor.dtype)
        size = data.numel() * data.element_size()
        operation = Operation(kind, size, data.element_size(), tensor.dtype, tuple(tensor.shape))
        call = Call(operation, data, [(tensor, data)] if kind == "send" else [], [tensor] if kind == "recv" else [])
        call.peer, call.strike, call.change = peer, strike, self._member.taken_change()
        call.sequence = self._member.post(kind, size, operation.dtype_name, operation.shape, peer)
        self._look_for_nan(connection, [call])
        if block is not None:
            block.calls.append(call)
            block.connection = connection
            block.outputs.append(tensor)
            block.asynchronous = True
            block.limit_ns = self._timeout_ns
            if not block.has_messages:  # those of a block share one number
                self._numbers = self._numbers[0], self._numbers[1] + 1
                block.has_messages = True
            self._record(self._message_name(kind, peer), [tensor], [tensor], is_message=True)
            return self._waits_for_nothing(kind, [tensor])
        self._numbers = self._numbers[0], self._numbers[1] + 1
        entry = self._record(self._message_name(kind, peer), [tensor], [tensor], is_message=True)
        tensors = [tensor]
        return self._launch(
            *(connection, [call], kind, kind.upper(), tensors, tensors, self._timeout_ns, entry), asynchronous=True
        )

    def _set_enable_nan_check(self, enable: bool) -> None:
        self._nan_check = enable

    def _look_for_nan(self, connection: Connection, calls: list[Call]) -> None:
        """A kernel before the operation's that fails where an input holds a NaN, if that is asked for."""
        if self._nan_check and any(holds_nan(call.operation, call.payload, self.rank()) for call in calls):
            streams = connection.streams_of(self.rank())
            streams.error = device_assert()
            self.watchdog.notice_device_error(streams.error)

    def _message_name(self, kind: str, peer: int) -> str:
        return f"{kind} {self.rank()}{'->' if kind == 'send' else '<-'}{peer}"

    def _self_message(self) -> BaseException:
        from simdist.c10d.backends.nccl._words import nccl_error

        return nccl_error("ncclInvalidUsage", "Trying to send to self without a matching recv", Place.SEND_TO_ITSELF)

    def _launch(
        self,
        connection: Connection,
        calls: list[Call],
        name: str,
        op_type: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        limit_ns: int,
        entry: Entry | None,
        *,
        asynchronous: bool,
        blocks: bool = False,
    ) -> NcclWork:
        communicator, member = self._communicator, self._member
        simulation, rank = communicator.simulation, self.rank()
        index, own, streams, _ = connection.ends[rank]
        if len(member.pending) >= _MOST_LAUNCHED:
            streams.wait_for(next(iter(member.pending)).end)
        if self.shelf:
            for stash in self.shelf:
                stash.clear()
            self.shelf.clear()
        current = current_stream(index)
        begin = streams.mark(index, current)
        number = current
        if asynchronous and own != current:
            number = own
            begin = latest([begin, streams.mark(index, own)])
        # Nobody gets the work of a call that the stream orders: it must not keep what the program gives up.
        filled = outputs if asynchronous else [memory_of(each.data) for each in outputs]
        work = NcclWork.make(member, name, calls[-1].sequence, filled)
        work.group, work.op_type, work.blocks, work.calls = self, op_type, blocks, []
        # It is gathered into one tensor, which the future has, and copied from there.
        work.in_one = op_type == "ALLGATHER" and len({each.shape for each in outputs}) == 1
        work.number = self._numbers[calls[0].operation.name in MESSAGES]
        work.numel_in, work.numel_out = _elements(inputs), _elements(outputs)
        work.connection = connection
        work.host_limit_ns = limit_ns if self.environment.blocking_wait else 0
        work.entry, work.timed = entry, self.timing
        if entry is not None:
            entry.work = work
        parts = []
        for call in calls:
            part = Part(connection, rank, call.operation, call.payload, begin, call.reads, call.writes, call.factor)
            part.sequence, part.strike, part.change, part.peer = call.sequence, call.strike, call.change, call.peer
            part.partners = call.partners
            part.work = work
            work.calls.append(part)
            communicator.call_site(part)
            parts.append(part)
        end = latest([part.end for part in parts])
        if streams.races is not None:
            key = index, number
            streams.races.order(key, streams.races.known_to((index, current)))
            reads = [tensor for call in calls for tensor, _ in call.reads]
            writes = [tensor for call in calls for tensor in call.writes]
            streams.races.use(key, reads, writes, name, user_line(user_frame(sys._getframe(1))), keeps=True)
            end.clock = streams.races.known_to(key)
        if simulation.bus.hears(WorkIssued):
            shapes = [list(each.shape) for each in inputs]  # what ProcessGroupNCCL hands its RecordFunction
            reduction = calls[0].operation.reduction if len(calls) == 1 else ""
            simulation.bus.tell(WorkIssued(work, name, shapes, asynchronous, reduction=reduction))
        member.pending[work] = None
        if asynchronous:
            work.stash = [tensor for call in calls for tensor in (*(read for read, _ in call.reads), *call.writes)]
        work.waited = not asynchronous
        streams.end_with(index, number, end)
        for part in parts:
            if streams.error is not None:
                part.lost = part.begun = True  # nothing runs on this device any more
                part.forget()
            elif part.operation.name in MESSAGES:
                connection.post(part)
            elif not part.operation.size and part.operation.name in KERNELS:
                # NCCL drops it: no kernel, and nobody waits for anybody. Of messages it drops none, torch empty ones.
                begin.when_known(functools.partial(_skip, part))
            else:
                connection.call(part)
        work.extra_ns, self._extra_taken_ns = self._extra_ns - self._extra_taken_ns, self._extra_ns
        work.begin(index, streams, end, simulation.now_ns, limit_ns + self._extra_ns)
        self.watchdog.watch(work)
        if not self.environment.blocking_wait:
            self._enqueued = work.number
        if self.timing and calls[0].operation.name not in MESSAGES:
            self.keep_begun(work)
        if blocks and not asynchronous:
            streams.synchronize(index, current)
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        if self._block is not None:
            return
        self._block = _Block()

    def _end_coalescing(self, device: Any = None) -> StreamWork | None:
        block, self._block = self._block, None
        if block is None:
            raise RuntimeError("Something went wrong. Did you call end_coalescing before start_coalescing?")
        if not block.calls:
            return None
        assert block.connection is not None
        entry = self._record_block("coalesced", is_message=not block.has_collectives)
        work = self._launch(
            *(block.connection, block.calls, "coalesced", "COALESCED", [], block.outputs, block.limit_ns, entry),
            asynchronous=block.asynchronous,
        )
        work.numel_in = work.numel_out = 0
        return work

    def _start_time_estimate(self) -> None:
        self._estimated = []

    def _end_time_estimate(self) -> float:
        """Microseconds that the calls since then would take."""
        operations, self._estimated = self._estimated or [], None
        return estimated_us(self._communicator, operations, self.preferences)

    def _group_start(self) -> None:
        """Of `ncclGroupStart`: what aborts together need not wait for each other here anyway."""

    _group_end = _group_start


def _skip(part: Part) -> None:
    part.begun = True
    part.forget()
    part.end.settle(part.begin.at_ns or 0)


def _elements(tensors: Sequence[Tensor]) -> int:
    return tensors[0].numel() if len(tensors) == 1 else sum([each.numel() for each in tensors])
