"""The part of one rank's ProcessGroupNCCL that launches: streams, messages, and blocks of coalesced calls."""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._membership import NcclMember
from simdist.c10d.backends.nccl._operands import Call, Operands, flat
from simdist.c10d.backends.nccl._options import NcclOptions
from simdist.c10d.backends.nccl._timing import estimated_us
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.backends.nccl.kernels._nan import holds_nan
from simdist.c10d.backends.nccl.watch._recorder import Entry
from simdist.c10d.calls import KERNELS, MESSAGES
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._work import SimWork, WorkIssued
from simdist.c10d.engine._stream_parts import Part
from simdist.c10d.engine._stream_work import StreamWork
from simdist.c10d.engine._streamed import Connection
from simdist.c10d.surface._options import real_options
from simdist.device import cuda_error, latest, memory_of
from simdist.frames import foreign_lines, user_frame, user_line
from simdist.inside.torch import NcclPlace
from simdist.process import Strike

if TYPE_CHECKING:
    from torch.types import Device

    from simdist.c10d.calls._member import Member
    from simdist.c10d.surface._arguments import Tensors
    from simdist.c10d.surface._store import SimStore

__all__ = ["NcclGroup"]

Tensor = torch.Tensor
_MOST_LAUNCHED = 1024  # works in flight: a device takes no more, and the host waits


@dataclass(slots=True)
class _Block:
    """Calls between `_start_coalescing` and `_end_coalescing`: they are launched together."""

    calls: list[Call] = field(default_factory=list)
    connection: Connection | None = None
    outputs: list[Tensor] = field(default_factory=list)
    has_collectives: bool = False
    has_messages: bool = False
    asynchronous: bool = False
    limit_ns: int = 0


class NcclGroup(NcclMember):
    """A group whose calls are launched on devices."""

    def __init__(self, member: Member, store: SimStore, size: int, options: NcclOptions) -> None:
        super().__init__(member, store, size, options)
        self._block: _Block | None = None
        self._nan_check = self.environment.nan_check
        self.shelf: list[list[Tensor]] = []  # tensors of finished works; the next call releases them
        self._estimated: list[Operation] | None = None  # during a time estimate, its calls, which do nothing

    def announce(self, name: str) -> None:
        """Announce the next collective before the call, because something else has to happen in between.

        Raises:
            Exception: a fault raises it in place of the call.
        """
        self._member.require_caller()
        self._member.call_ahead(name)

    def operation(
        self,
        name: str,
        tensor: Tensor,
        size: int,
        reduction: str = "",
        root: int = -1,
        shape: tuple[int, ...] | None = None,
    ) -> Operation:
        """Return the operation with these parameters; it is checked and made once, and then kept.

        Raises:
            TypeError, ValueError, RuntimeError: NCCL does not support this type or reduction.
        """
        dtype = tensor.dtype
        shape = tensor.shape if shape is None else shape
        key = name, size, dtype.itemsize, dtype, shape, reduction, root, None
        communicator = self._communicator
        known = communicator.known.get(key)
        if known is None:
            _arguments.check_type(name, dtype)
            if reduction:
                _arguments.check_reduction(reduction, dtype)
            known = communicator.known[key] = communicator.new_operation(key)
        return known

    def _called(self, name: str) -> Strike | None:
        member = self._member
        simulation = self._communicator.simulation
        current = simulation.current
        if current is None or current.doomed or get_ident() != simulation.current_ident:
            simulation.check()
        elif current.context is not member.process:
            member.refuse_stranger(current.context)
        return member.called(name, member.sequence) if simulation.bus.active else None

    def _collective(self, operands: Operands) -> SimWork | None:
        """Launch a collective of one call or several; the layout is made when the communicator is there."""
        name, inputs, outputs, layout = operands.name, operands.inputs, operands.outputs, operands.layout
        assert layout is not None
        index = inputs[0].get_device()
        if self._estimated is not None:
            self._connection(index)
            self._estimated += [call.operation for call in layout(self, operands)]
            return self._waits_for_nothing(name, outputs)
        strike = self._called(name)
        connection = self._connection(index)
        if connection.ends[self._member.rank][2].failure is not None:
            self.require_devices()
        asynchronous = getattr(operands.opts, "asyncOp", True)
        if type(asynchronous) is not bool:
            asynchronous = real_options(operands.opts).asyncOp
        limit_ns = self._timeout_ns  # torch ignores the options' timeout
        member, block, inner = self._member, self._block, operands.inner
        if block is None or not block.has_collectives:  # the collectives of a block share one number
            self._numbers = self._numbers[0] + 1, self._numbers[1]
            member.number += 1
        if inner is None:
            entry = self._record(operands.kind[1], inputs, outputs)
        else:
            for given, filled in inner[1]:
                self._record(inner[0], [given], [filled])
            entry = self._record(operands.kind[1], [], [], counts=False) if block is None else None
        calls = layout(self, operands)
        if self.preferences is not None and self._size > 1:
            for call in calls:
                self.preferences.require(call.operation)
        for call in calls:
            operation, reduces = call.operation, call.reduction_operands
            call.sequence = member.issued(operation, None, outputs, limit_ns, asynchronous, False, reduces)
        calls[0].strike = strike
        calls[0].change, member.change = member.change, None
        calls[0].change_result, member.change_result = member.change_result, None
        if self._nan_check:
            self._look_for_nan(connection, calls)
        if block is not None:
            block.calls += calls
            block.connection = connection
            block.outputs += outputs
            block.has_collectives = True
            block.asynchronous = block.asynchronous or asynchronous
            block.limit_ns = limit_ns
            return self._waits_for_nothing(name, outputs)
        work = self._launch(connection, calls, operands, limit_ns, entry, asynchronous=asynchronous)
        if inner is not None:
            work.numel_in = work.numel_out = 0
        elif work.op_type == "COALESCED":
            work.numel_in, work.numel_out = inputs[0].numel(), outputs[0].numel()
        return work if asynchronous else None

    def _record(
        self,
        name: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        *,
        is_message: bool = False,
        counts: bool = True,
    ) -> Entry | None:
        """Record a call. `counts` is False for the launch of a block, which is no operation of its own."""
        if counts:
            self._operations += 1
        recorder = self._nccl.recorder
        if not recorder.limit:
            return None
        collectives, messages = self._numbers
        numbers = collectives, messages, self._operations
        dtype = str(inputs[0].dtype).removeprefix("torch.") if inputs else ""
        given = [list(inputs[0].shape)] if len(inputs) == 1 else [list(each.shape) for each in inputs]
        filled = [list(outputs[0].shape)] if len(outputs) == 1 else [list(each.shape) for each in outputs]
        now_ns, frames = self._communicator.simulation.now_ns, foreign_lines(sys._getframe())
        return recorder.add(self, numbers, name, given, filled, dtype, now_ns, self._timeout_ns, is_message, frames)

    def _waits_for_nothing(self, name: str, outputs: list[Tensor]) -> SimWork:
        """Return the work of a call inside a block: it is done at once, and only the block's work has an end."""
        work = SimWork.make(self._member, name, -1, outputs)
        work.done = True
        return work

    def _message(self, kind: str, tensors: Tensors, peer: int, tag: int) -> SimWork | None:
        """Launch a send or a receive, or keep it in a block. NCCL ignores the tag."""
        tensor = _arguments.single(tensors, message=True)
        strike = self._called(kind)
        block, index = self._block, tensor.get_device()
        if block is None and peer == self.rank():
            raise self._self_message()
        connection = self._connection(index) if block is not None else self._pair(peer, index)
        if connection.ends[self._member.rank][2].failure is not None:
            self.require_devices()
        data = flat(tensor)
        _arguments.check_type(kind, tensor.dtype)
        size = data.numel() * data.element_size()
        operation = Operation(kind, size, data.element_size(), tensor.dtype, tuple(tensor.shape))
        call = Call(operation, data, [(tensor, data)] if kind == "send" else [], [tensor] if kind == "recv" else [])
        call.peer, call.strike = peer, strike
        call.change, self._member.change = self._member.change, None
        call.sequence = self._member.post(kind, size, operation.dtype_name, operation.shape, peer)
        if self._nan_check:
            self._look_for_nan(connection, [call])
        if block is not None:
            block.calls.append(call)
            block.connection = connection
            block.outputs.append(tensor)
            block.asynchronous = True
            block.limit_ns = self._timeout_ns
            if not block.has_messages:  # the messages of a block share one number
                self._numbers = self._numbers[0], self._numbers[1] + 1
                block.has_messages = True
            self._record(self._message_name(kind, peer), [tensor], [tensor], is_message=True)
            return self._waits_for_nothing(kind, [tensor])
        self._numbers = self._numbers[0], self._numbers[1] + 1
        entry = self._record(self._message_name(kind, peer), [tensor], [tensor], is_message=True)
        operands = Operands(kind, (kind.upper(), ""), [tensor], [tensor])
        return self._launch(connection, [call], operands, self._timeout_ns, entry, asynchronous=True)

    def _set_enable_nan_check(self, enable: bool) -> None:
        self._nan_check = enable

    def _look_for_nan(self, connection: Connection, calls: list[Call]) -> None:
        """Run the NaN check's kernel before the operation; it fails if an input holds a NaN."""
        if any(holds_nan(call.operation, call.payload, self.rank()) for call in calls):
            streams = connection.streams_of(self.rank())
            streams.error = cuda_error("assert")
            self.watchdog.notice_device_error(streams.error)

    def _message_name(self, kind: str, peer: int) -> str:
        return f"{kind} {self.rank()}{'->' if kind == 'send' else '<-'}{peer}"

    def _self_message(self) -> BaseException:
        from simdist.c10d.backends.nccl._errors import nccl_error

        return nccl_error(
            "ncclInvalidUsage", "Trying to send to self without a matching recv", NcclPlace.SEND_TO_ITSELF
        )

    def _launch(
        self,
        connection: Connection,
        calls: list[Call],
        operands: Operands,
        limit_ns: int,
        entry: Entry | None,
        *,
        asynchronous: bool,
    ) -> NcclWork:
        name, (op_type, _), inputs, outputs = operands.name, operands.kind, operands.inputs, operands.outputs
        communicator, member = self._communicator, self._member
        simulation, rank = communicator.simulation, member.rank
        index, own, streams, _ = connection.ends[rank]
        if len(member.pending) >= _MOST_LAUNCHED:
            oldest: Any = next(iter(member.pending))
            streams.wait_for(oldest.end)
        if self.shelf:
            for stash in self.shelf:
                stash.clear()
            self.shelf.clear()
        current = streams.current(index)
        begin = streams.mark(index, current)
        number = current
        if asynchronous and own != current:
            number = own
            begin = latest([begin, streams.mark(index, own)])
        # The program does not get the work of a synchronous call: it must not keep tensors that the program drops.
        filled = outputs
        if not asynchronous:
            known = operands.memory if len(outputs) == 1 else None
            filled = [memory_of(each.data) for each in outputs] if known is None else [known]
        work = NcclWork.make(member, name, calls[-1].sequence, filled)
        work.group, work.op_type, work.blocks = self, op_type, operands.blocks
        # NCCL gathers into one tensor, which the future holds, and copies from there.
        work.in_one = op_type == "ALLGATHER" and len({each.shape for each in outputs}) == 1
        is_message = calls[0].operation.name in MESSAGES
        work.number = self._numbers[is_message]
        work.numel_in = inputs[0].numel() if len(inputs) == 1 else _elements(inputs)
        work.numel_out = outputs[0].numel() if len(outputs) == 1 else _elements(outputs)
        work.connection = connection
        work.host_limit_ns = limit_ns if self.environment.blocking_wait else 0
        work.entry, work.timed = entry, self.timing
        if entry is not None:
            entry.work = work
        parts = []
        for call in calls:
            part = Part(connection, rank, call.operation, call.payload, begin, call.reads, call.writes, call.factor)
            part.sequence, part.strike, part.change, part.peer = call.sequence, call.strike, call.change, call.peer
            part.change_result, part.partners = call.change_result, call.partners
            part.work = work
            if communicator.strict:
                communicator.call_site(part)
            parts.append(part)
        work.calls = parts
        end = parts[0].end if len(parts) == 1 else latest([part.end for part in parts])
        if streams.races is not None:
            key = index, number
            streams.races.order(key, streams.races.known_to((index, current)))
            reads = [tensor for call in calls for tensor, _ in call.reads]
            writes = [tensor for call in calls for tensor in call.writes]
            streams.races.use(key, reads, writes, name, user_line(user_frame(sys._getframe(1))), keeps=True)
            end.clock = streams.races.known_to(key)
        if simulation.bus.hears(WorkIssued):
            shapes = [list(each.shape) for each in inputs]  # as ProcessGroupNCCL passes them to its RecordFunction
            reduction = calls[0].operation.reduction if len(calls) == 1 else ""
            simulation.bus.report(WorkIssued(work, name, shapes, asynchronous, reduction=reduction))
        member.pending[work] = None
        if asynchronous:
            work.stash = [tensor for call in calls for tensor in (*(read for read, _ in call.reads), *call.writes)]
        work.waited = not asynchronous
        streams.end_with(index, number, end)
        try:
            for part in parts:
                if streams.error is not None:
                    part.lost = part.begun = True  # nothing runs on a failed device
                    part.forget()
                elif part.operation.name in MESSAGES:
                    connection.post(part)
                elif not part.operation.size and part.operation.name in KERNELS:
                    # NCCL drops it: no kernel runs, and no rank waits. It drops no messages; torch drops empty ones.
                    begin.when_known(functools.partial(_skip, part))
                else:
                    connection.call(part)
        except BaseException:
            member.pending.pop(work, None)  # nothing is to wait for a work that has not begun
            raise
        work.extra_ns, self._extra_taken_ns = self._extra_ns - self._extra_taken_ns, self._extra_ns
        work.begin(index, streams, end, simulation.now_ns, limit_ns + self._extra_ns)
        self.watchdog.watch(work)
        if not self.environment.blocking_wait:
            self._enqueued = work.number
        if self.timing and not is_message:
            self.keep_begun(work)
        if work.blocks and not asynchronous:
            streams.synchronize(index, current)
        return work

    def _start_coalescing(self, device_type: Device = None) -> None:
        if self._block is not None:
            return
        self._block = _Block()

    def _end_coalescing(self, device_type: Device = None) -> StreamWork | None:
        block, self._block = self._block, None
        if block is None:
            raise RuntimeError("Something went wrong. Did you call end_coalescing before start_coalescing?")
        if not block.calls:
            return None
        assert block.connection is not None
        entry = self._record("coalesced", [], [], is_message=not block.has_collectives, counts=False)
        operands = Operands("coalesced", ("COALESCED", ""), [], block.outputs)
        work = self._launch(
            block.connection, block.calls, operands, block.limit_ns, entry, asynchronous=block.asynchronous
        )
        work.numel_in = work.numel_out = 0
        return work

    def _start_time_estimate(self) -> None:
        self._estimated = []

    def _end_time_estimate(self) -> float:
        """Return the microseconds that the calls since `_start_time_estimate` would take."""
        operations, self._estimated = self._estimated or [], None
        return estimated_us(self._communicator, operations, self.preferences)

    def _group_start(self) -> None:
        """Does nothing, unlike `ncclGroupStart`: aborts here do not wait for each other anyway."""

    _group_end = _group_start


def _skip(part: Part) -> None:
    part.begun = True
    part.forget()
    part.end.settle(part.begin.at_ns or 0)


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum([each.numel() for each in tensors])
