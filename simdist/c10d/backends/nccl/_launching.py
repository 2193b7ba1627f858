"""One rank's ProcessGroupNCCL as far as it launches: communicators, streams, blocks of coalesced calls, and its end."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._log import log
from simdist.c10d.backends.nccl._nan import device_assert, holds_nan
from simdist.c10d.backends.nccl._options import NcclConfig, NcclOptions
from simdist.c10d.backends.nccl._rank import nccl_of
from simdist.c10d.backends.nccl._recorder import Entry, stack
from simdist.c10d.backends.nccl._watchdog import Monitor, Watchdog
from simdist.c10d.backends.nccl._work import NcclWork
from simdist.c10d.engine._stream_work import StreamWork
from simdist.c10d.engine._streamed import Connection, Part, StreamCommunicator
from simdist.c10d.surface import _memory
from simdist.c10d.surface._compat import is_duration, timeout_ns, whole_ms
from simdist.c10d.surface._events import WorkIssued
from simdist.c10d.surface._identity import GroupBackend
from simdist.c10d.surface._operation import Operation
from simdist.device import account_of, current_stream, devices_of_this_process, latest, memory_of
from simdist.frames import user_frame, user_line
from simdist.records import flight_status

if TYPE_CHECKING:
    from simdist.c10d.engine import Member

__all__ = ["Call", "NcclGroup", "flat"]

Tensor = torch.Tensor
_errors: Any = _c  # has what the stubs leave out


def flat(tensor: Tensor) -> Tensor:
    """The memory of a device's tensor as one dimension of CPU memory."""
    return _memory.flat(memory_of(tensor.data))


@dataclass(slots=True, eq=False)
class Call:
    """One call of an operation, with what the data plane wants of it, until it is launched.

    `reads` are tensors that are only read, each with what stands for it in `inputs`; `writes` are filled.
    """

    operation: Operation
    inputs: Any
    reads: list[tuple[Tensor, Tensor]]
    writes: list[Tensor]
    reduction_operands: Any = ()
    factor: Any = None
    peer: int = -1
    sequence: int = -1
    strike: Any = None


@dataclass(slots=True)
class _Block:
    """Calls between `_start_coalescing` and `_end_coalescing`: they are launched together."""

    calls: list[Call] = field(default_factory=list)
    connection: Connection | None = None
    outputs: list[Any] = field(default_factory=list)
    messages_only: bool = True
    asynchronous: bool = False
    limit_ns: int = 0


class NcclGroup(GroupBackend):
    """A group whose calls are launched on devices."""

    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = True
    supports_time_estimate = True

    Options = NcclOptions
    NCCLConfig = NcclConfig

    _communicator: StreamCommunicator
    ahead: tuple[Any, ...] | None = None  # what was announced ahead of its call has left to strike

    def __init__(self, member: Member, store: Any, size: int, options: NcclOptions) -> None:
        super().__init__(member, store, size, options.timeout)
        self.options = options
        self._name = str(options.group_name)
        self._nccl = nccl_of(member.process)
        self.environment = self._nccl.environment
        self._uid = len(self._nccl.groups)
        self._nccl.groups.append(self)
        self._nccl.recorder.enter(self)
        self.watchdog = Watchdog(self, self._nccl)
        if self._nccl.monitor is None and not self.environment.blocking_wait:
            self._nccl.monitor = Monitor(self, self._nccl, store)
        member.process.end_listeners[self._on_end] = None
        self.closed = False  # it was shut down, or the program has aborted it
        self.results: dict[NcclWork, list[Any]] = {}  # futures of how works end
        self._completed = -1  # the last number of a collective that is over
        self._operations = 0  # calls, those in blocks each for itself
        self._error = "SUCCESS"
        self._extra_ns = self._extra_taken_ns = 0  # of every work's timeout; and the part that a work will give back
        self._splits = 0
        self._nan_check = self.environment.nan_check
        if options.split_from is not None:
            options.split_from.count_split(options.split_from.bound_device_id.index)
        self._connections: dict[str, Connection] = {}  # by the device, or the two ranks
        self._block: _Block | None = None
        self._bound: torch.device | None = None
        self._used: list[int] = []  # devices, in the order of their first use
        self._numbers = 0, 0  # collectives and messages so far
        self._aborted = ""  # why no call is possible any more

    # -- who it is -----------------------------------------------------------------------------------------------

    def _get_backend(self, device: Any) -> GroupBackend:
        if torch.device(device).type != "cuda":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda")]

    @property
    def bound_device_id(self) -> Any:
        """The device that the program has given `init_process_group`."""
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self._bound = device

    def _get_sequence_number_for_group(self) -> int:
        return self._numbers[0]

    def _set_sequence_number_for_group(self) -> None:
        """Numbers begin where the group begins."""

    def _set_default_timeout(self, timeout: timedelta | float) -> None:
        if not is_duration(timeout):
            raise TypeError(
                f"_set_default_timeout(): incompatible function arguments: expected a duration, got {timeout!r}"
            )
        self.options._timeout = whole_ms(timeout)
        self._timeout_ns = round(self.options._timeout.total_seconds() * 1e9)

    set_timeout = _set_default_timeout

    def _is_initialized(self) -> bool:
        return bool(self._connections)

    @property
    def uid(self) -> int:
        """The number of the group among those of its process."""
        return self._uid

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """The version that torch was built with."""
        return 2, 29, 7

    get_runtime_nccl_version = get_build_nccl_version

    # -- communicators -------------------------------------------------------------------------------------------

    def eager_connect_single_device(self, device: Any) -> None:
        """Make the communicator of a device now, and not in the first call."""
        self._connection(torch.device(device).index)

    def _connection(self, index: int) -> Connection:
        """The communicator of all ranks with this rank's device; the first call waits for the others."""
        self._require_alive()
        if self._bound is not None and self._bound.index != index:
            bound = self._bound.index
            self._warn("E", f"Tensor found on device cuda:{index} but backend constrained to cuda:{bound}", 3740)
            raise dist.DistBackendError(
                "Attempt to perform collective on tensor not on device passed to init_process_group"
            )
        known = self._connections.get(str(index))
        if known is not None:
            return known
        number = sum(":" not in key for key in self._connections)
        return self._connect(str(index), f"{number}", range(self._size), index)

    def _pair(self, peer: int, index: int) -> Connection:
        """The communicator of this rank and another, for messages outside of a block; that of all in an eager group."""
        if self._bound is not None:
            return self._connection(index)
        self._require_alive()
        low, high = sorted((self.rank(), peer))
        key = f"{low}:{high}"
        known = self._connections.get(key)
        return known if known is not None else self._connect(key, key, sorted({low, high}), index)

    def connect(self, index: int) -> None:
        """Make the communicator of a device."""
        self._connection(index)

    def primary_device(self) -> int | None:
        """The device of the first communicator of all ranks; None: there is none."""
        return next((int(key) for key in self._connections if ":" not in key), None)

    def count_split(self, index: int) -> None:
        """All ranks split the communicator of a device, each as often as this one."""
        self._splits += 1
        self._connection(index).meet(self._member)

    def comm_split_count(self) -> int:
        """How many groups were split off."""
        return self._splits

    def perform_nocolor_split(self, device: Any) -> None:
        """Take part in a split, and be no member of what comes of it."""
        self.count_split(torch.device(device).index)

    def _connect(self, mine: str, key: str, ranks: Any, index: int) -> Connection:
        if self.rank() == min(ranks):
            name = f"{self._communicator.name}/{key}".encode()
            self._store.announce(key, hashlib.sha512(name).digest() * 2)  # ncclUniqueId has 128 bytes
        device = account_of(index).device
        streams = devices_of_this_process().streams
        made = self._communicator.connection(key, list(ranks), self._member, index, device, streams)
        self._connections[mine] = made
        self._nccl.recorder.configure(self, self._communicator.ranks)
        if index not in self._used:
            self._used.append(index)
        return made

    def _require_alive(self) -> None:
        if self._aborted:
            raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}. {self._aborted.strip()}")

    def _prefix(self) -> str:
        described = self._description not in ("", "undefined")
        about = f"({self._description})" if described else ""
        return f"[PG ID {self.uid} PG GUID {self._name}{about} Rank {self.rank()}] "

    def _warn(self, level: str, text: str, line: int) -> None:
        """Write a line of torch's log, behind the group's prefix."""
        log(self._member.process, level, f"{self._prefix()}{text}", line)

    # -- for the watchdog ----------------------------------------------------------------------------------------

    def progress(self) -> tuple[int, int]:
        """The last collective that was launched, and the last that is over; -1 for none."""
        return self._numbers[0] or -1, self._completed

    def status(self) -> dict[str, int]:
        """The same as the recorder has it."""
        return flight_status(*self.progress())

    def get_error(self) -> Any:
        """What has happened to the group; the first stays."""
        return _errors.ErrorType.__members__[self._error]

    def set_error(self, kind: str) -> None:
        """Something has happened."""
        if self._error == "SUCCESS":
            self._error = kind
        for futures in self.results.values():
            for future in futures:
                result = _errors.WorkResult.__members__[kind]
                self._member.process.deliver(functools.partial(future.set_result, result))
        self.results.clear()

    def on_done(self, work: NcclWork) -> None:
        """A work is over."""
        self.watchdog.forget(work)
        if not work.aborted:
            self._extra_ns -= work.extra_ns
            self._extra_taken_ns -= work.extra_ns
            if work.op_type not in ("SEND", "RECV"):
                self._completed = max(self._completed, work.number)
        for future in self.results.pop(work, ()):
            work.process.deliver(functools.partial(future.set_result, _errors.WorkResult.SUCCESS))

    def abort_because(self, reason: str) -> None:
        """The communicators are ended, and the group is of no use any more; the program is not asked."""
        self._aborted = f"Original reason for failure was: {reason}"
        self.release()

    def release(self) -> None:
        """End what is under way: streams are free, and the data is garbage.

        To abort takes real processes so long that what all ranks have called is over by then.
        """
        now_ns = self._communicator.simulation.now_ns
        for work in list(self._member.pending):
            if isinstance(work, NcclWork):
                work.aborted = any(part.whole is None or part.whole.missing for part in work.calls)
        for connection in self._connections.values():
            connection.release(self.rank(), now_ns)
            connection.leave(self.rank(), at_once=False)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra_ns += round(timeout.total_seconds() * 1e9)

    def _verify_work_timeout(self, work: NcclWork, timeout: timedelta) -> bool:
        return work.timeout_ns == round(timeout.total_seconds() * 1e9)

    def _on_end(self, _: Any) -> None:
        self.watchdog.stop()

    # -- launching -----------------------------------------------------------------------------------------------

    def announce(self, name: str) -> None:
        """Announce the next collective ahead of the call: something comes before it.

        Raises:
            Exception: a fault has it in place of the call.
        """
        self.ahead = (self._announced(name),)

    def _announced(self, name: str) -> Any:
        communicator = self._communicator
        if self.ahead is not None:
            (strike,), self.ahead = self.ahead, None
            return strike
        communicator.simulation.check()
        current = communicator.simulation.current
        if current is not None and current.context is not self._member.process:
            self._member.refuse_stranger(current.context)
        if not communicator.simulation.bus.active:
            return None
        return communicator.announce(self._member, name, self._member.sequence)

    def _limit(self, opts: Any) -> int:
        return timeout_ns(opts, self._timeout_ns) if hasattr(opts, "timeout") else self._timeout_ns

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
    ) -> StreamWork | None:
        """Launch a collective, whose calls `make` makes once its communicator is there; one call, or several in one.

        `kind` is what torch calls it, in messages and in the recorder.
        """
        index = inputs[0].get_device()
        strike = self._announced(name)
        connection = self._connection(index)
        asynchronous = getattr(opts, "asyncOp", True)
        limit_ns = self._limit(opts)
        member, communicator = self._member, self._communicator
        block = self._block
        if block is None:
            self._numbers = self._numbers[0] + 1, self._numbers[1]
            member.number += 1
        entry = self._record(kind[1], inputs, outputs, limit_ns, is_message=False)
        calls = make()
        for call in calls:
            call.sequence = communicator.note_collective(
                member, call.operation, call.reduction_operands, outputs, limit_ns, asynchronous=asynchronous
            )
        calls[0].strike = strike or None
        self._look_for_nan(connection, calls)
        if block is not None:
            block.calls += calls
            block.connection = connection
            block.outputs += outputs
            block.messages_only = False
            block.asynchronous = block.asynchronous or asynchronous
            block.limit_ns = limit_ns
            return None
        work = self._launch(
            *(connection, calls, name, kind[0], inputs, outputs, limit_ns, entry),
            asynchronous=asynchronous,
            blocks=blocks,
        )
        return work if asynchronous else None

    def _record(
        self, name: str, inputs: list[Tensor], outputs: list[Tensor], limit_ns: int, *, is_message: bool
    ) -> Entry | None:
        recorder = self._nccl.recorder
        self._operations += 1
        if not recorder.limit:
            return None
        collectives, messages = self._numbers
        numbers = collectives, messages, self._operations
        dtype = str(inputs[0].dtype).removeprefix("torch.") if inputs else ""
        given, filled = ([list(tensor.shape) for tensor in tensors] for tensors in (inputs, outputs))
        now_ns, frames, limit_ns = self._communicator.simulation.now_ns, stack(), self._timeout_ns
        return recorder.add(
            lambda number: Entry(
                self, number, numbers, name, given, filled, dtype, now_ns, limit_ns, is_message, frames
            )
        )

    def _message(self, kind: str, tensors: Any, peer: int, tag: int) -> StreamWork | None:
        """Launch a send or a receive; in a block, remember it. The tag means nothing to NCCL."""
        tensor = _arguments.single(tensors, message=True)
        strike = self._announced(kind)
        block, index = self._block, tensor.get_device()
        if block is None and peer == self.rank():
            raise self._self_message()
        connection = self._connection(index) if block is not None else self._pair(peer, index)
        data = flat(tensor)
        _arguments.check_type(kind, tensor.dtype)
        size = data.numel() * data.element_size()
        operation = Operation(kind, size, data.element_size(), tensor.dtype, tuple(tensor.shape))
        call = Call(operation, data, [(tensor, data)] if kind == "send" else [], [tensor] if kind == "recv" else [])
        call.peer, call.strike = peer, strike or None
        call.sequence = self._communicator.note_message(self._member, operation, peer)
        self._look_for_nan(connection, [call])
        if block is not None:
            block.calls.append(call)
            block.connection = connection
            block.outputs.append(tensor)
            block.asynchronous = True
            block.limit_ns = self._timeout_ns
            self._record(self._message_name(kind, peer), [tensor], [tensor], self._timeout_ns, is_message=True)
            return None
        self._numbers = self._numbers[0], self._numbers[1] + 1
        entry = self._record(self._message_name(kind, peer), [tensor], [tensor], self._timeout_ns, is_message=True)
        tensors = [tensor]
        return self._launch(
            *(connection, [call], kind, kind.upper(), tensors, tensors, self._timeout_ns, entry), asynchronous=True
        )

    def _set_enable_nan_check(self, enable: bool) -> None:
        self._nan_check = enable

    def _look_for_nan(self, connection: Connection, calls: list[Call]) -> None:
        """A kernel before the operation's that fails where an input holds a NaN, if that is asked for."""
        if self._nan_check and any(holds_nan(call.operation, call.inputs, self.rank()) for call in calls):
            streams = connection.streams_of(self.rank())
            streams.error = device_assert()
            self.watchdog.notice_device_error(streams.error)

    def _message_name(self, kind: str, peer: int) -> str:
        return f"{kind} {self.rank()}{'->' if kind == 'send' else '<-'}{peer}"

    def _self_message(self) -> BaseException:
        from simdist.c10d.backends.nccl._words import nccl_error

        return nccl_error("ncclInvalidUsage", "Trying to send to self without a matching recv")

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
    ) -> StreamWork:
        communicator, member = self._communicator, self._member
        simulation, rank = communicator.simulation, self.rank()
        index, own, streams, _ = connection.ends[rank]
        current = current_stream(index)
        begin = streams.mark(index, current)
        number = current
        if asynchronous and own != current:
            number = own
            begin = latest([begin, streams.mark(index, own)])
        work = NcclWork.make(member, name, calls[-1].sequence, outputs)
        work.group, work.op_type, work.blocks, work.calls = self, op_type, blocks, []
        work.number = self._numbers[calls[0].operation.name in ("send", "recv")]
        work.numel_in, work.numel_out = (sum(each.numel() for each in tensors) for tensors in (inputs, outputs))
        work.logged_rank = self._nccl.groups[0].rank()
        work.host_limit_ns = limit_ns if self.environment.blocking_wait else 0
        work.entry = entry
        if entry is not None:
            entry.work = work
        parts = []
        for call in calls:
            part = Part(connection, rank, call.operation, call.inputs, begin, call.reads, call.writes, call.factor)
            part.sequence, part.strike, part.peer = call.sequence, call.strike, call.peer
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
            streams.races.use(key, reads, writes, name, user_line(user_frame(sys._getframe(1))))
            end.clock = streams.races.known_to(key)
        if simulation.bus.hears(WorkIssued):
            shapes = [list(each.shape) for each in outputs]
            simulation.bus.tell(WorkIssued(work, name, shapes, asynchronous))
        member.pending[work] = None
        work.waited = not asynchronous
        streams.end_with(index, number, end)
        for part in parts:
            if streams.error is not None:
                part.lost = part.begun = True  # nothing runs on this device any more
            elif part.operation.name in ("send", "recv"):
                connection.post(part)
            elif not part.operation.size:  # NCCL drops it: no kernel, and nobody waits for anybody
                begin.when_known(functools.partial(_skip, part))
            else:
                connection.call(part)
        work.extra_ns, self._extra_taken_ns = self._extra_ns - self._extra_taken_ns, self._extra_ns
        work.begin(index, streams, end, simulation.now_ns, limit_ns + self._extra_ns)
        self.watchdog.watch(work)
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
        collectives, messages = self._numbers
        if block.messages_only:
            self._numbers = collectives, messages + 1
        else:
            self._numbers = collectives + 1, messages
            self._member.number += 1
        entry = self._record("coalesced", [], [], block.limit_ns, is_message=block.messages_only)
        return self._launch(
            *(block.connection, block.calls, "coalesced", "COALESCED", [], block.outputs, block.limit_ns, entry),
            asynchronous=block.asynchronous,
        )

    def _group_start(self) -> None:
        """Of `ncclGroupStart`: what aborts together need not wait for each other here anyway."""

    _group_end = _group_start

    # -- its end -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Wait until what is queued is over, and end the communicators."""
        if not self._aborted:
            for work in list(self._member.pending):
                if isinstance(work, NcclWork):
                    work.streams.wait_for(work.end, heeds_errors=False)
        self._close()

    def let_end(self, until_ns: int) -> None:
        """Wait until what was launched is over, but no longer than until then."""
        simulation = self._communicator.simulation
        for work in list(self._member.pending):
            while not work.done and simulation.now_ns < until_ns:
                if not simulation.park(work, until_ns):
                    return

    def abort(self) -> None:
        """End the communicators at once: streams are free, and what was under way leaves garbage."""
        self.release()
        self._close()

    def _close(self) -> None:
        self._aborted = self._aborted or " "
        self.closed = True
        self.watchdog.stop()


def _skip(part: Part) -> None:
    part.begun = True
    part.end.settle(part.begin.at_ns or 0)
