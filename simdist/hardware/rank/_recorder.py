"""Records a rank's c10d operations, inside the real process.

Torch's `c10d::` operators get one more kernel, at the dispatch key `BackendSelect`, which every call passes on its way
to the backend's kernel: it records the call, passes it on, and returns a work that records its end. All callers pass
there: Python, DDP's reducer and functional collectives in C++, on any thread, in inference mode; the process group
itself stays as it is. (Observed with torch 2.13. Operations on a bare backend object, such as a `ProcessGroupGloo` that
the program made itself, do not pass through the dispatcher and are not recorded.)

Events are those of a simulation (`simdist.trace`), so that the two can be compared: the same names, shapes and
sequence numbers, and a "result" event with a checksum over what a member's tensors hold when it has waited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from simdist._content import content_checksum, with_numbered_storages, with_zero_padding
from simdist.c10d.calls import MESSAGES
from simdist.hardware._journal import Journal
from simdist.hardware.rank._scaling import scaled
from simdist.hardware.rank._strikes import Strikes
from simdist.inside.torch import DispatchKey, Work, c10d_module, group_world
from simdist.records import completed, failed, message_issued, new_group, result_noted

__all__ = ["Recorder"]


@dataclass(frozen=True, slots=True)
class _Call:
    """One operation as the simulation's events name it. `peer` is the other side's or the root's group rank, or -1."""

    op: str
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    shape: tuple[int, ...]
    peer: int = -1
    tag: int = 0

    @property
    def kind(self) -> str:
        """The kind of operations with which it shares a sequence count."""
        if self.op in MESSAGES:
            return "message"
        return self.op if self.op == "monitored_barrier" else "collective"

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs)

    @property
    def dtype(self) -> str:
        return str(self.inputs[0].dtype).removeprefix("torch.") if self.inputs else ""


def _one(op: str, tensor: torch.Tensor, outputs: Sequence[torch.Tensor], peer: int = -1, tag: int = 0) -> _Call:
    return _Call(op, [tensor], outputs, tuple(tensor.shape), peer, tag)


def _joined(op: str, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> _Call:
    return _Call(op, tensors, outputs, (sum(tensor.numel() for tensor in tensors),))


def _all_reduce(tensors: Sequence[torch.Tensor], *_: object) -> list[_Call]:
    sparse = tensors[0].layout is not torch.strided
    return [_one("sparse_all_reduce" if sparse else "all_reduce", tensors[0], tensors)]


def _reduce_scatter(
    outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], *_: object
) -> list[_Call]:
    return [_Call("reduce_scatter", inputs[0], outputs, tuple(outputs[0].shape))]


def _all_to_all(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *_: object) -> list[_Call]:
    return [_Call("all_to_all", inputs, outputs, tuple(inputs[0].shape))]


# Operator -> its operations; the arguments are the operator's own (torch/csrc/distributed/c10d/Ops.cpp). Operations of
# the coalesced operators are recorded one by one, as the simulation issues them.
_DESCRIBE: dict[str, Callable[..., list[_Call]]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": lambda tensors, *_: [_joined("all_reduce", tensors, tensors)],
    "broadcast_": lambda tensors, group, root, *_: [_one("broadcast", tensors[0], tensors, root)],
    "reduce_": lambda tensors, group, op, root, *_: [_one("reduce", tensors[0], tensors, root)],
    "allgather_": lambda outputs, inputs, *_: [_one("all_gather", inputs[0], outputs[0])],
    "_allgather_base_": lambda output, tensor, *_: [_one("all_gather", tensor, [output])],
    "allgather_coalesced_": lambda outputs, inputs, *_: [
        _joined("all_gather", inputs, [tensor for listed in outputs for tensor in listed])
    ],
    "allgather_into_tensor_coalesced_": lambda outputs, inputs, *_: [
        _one("all_gather", tensor, [output]) for output, tensor in zip(outputs, inputs, strict=True)
    ],
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": lambda output, tensor, *_: [_one("reduce_scatter", tensor, [output])],
    "reduce_scatter_tensor_coalesced_": lambda outputs, inputs, *_: [
        _one("reduce_scatter", tensor, [output]) for output, tensor in zip(outputs, inputs, strict=True)
    ],
    "gather_": lambda outputs, inputs, group, root, *_: [
        _one("gather", inputs[0], outputs[0] if outputs else [], root)
    ],
    "scatter_": lambda outputs, inputs, group, root, *_: [_one("scatter", outputs[0], outputs, root)],
    "alltoall_": _all_to_all,
    "alltoall_base_": lambda output, tensor, *_: [_one("all_to_all", tensor, [output])],
    "barrier": lambda *_: [_Call("barrier", [], [], ())],
    "monitored_barrier_": lambda *_: [_Call("monitored_barrier", [], [], ())],
    "send": lambda tensors, group, peer, tag: [_one("send", tensors[0], tensors, peer, tag)],
    "recv_": lambda tensors, group, peer, tag: [_one("recv", tensors[0], tensors, peer, tag)],
    "recv_any_source_": lambda tensors, group, tag: [_one("recv", tensors[0], tensors, tag=tag)],
}
_HERE = DispatchKey.BackendSelect


class Recorder:
    """Records each operation of this process in the journal, and lets faults strike."""

    def __init__(self, journal: Journal, strikes: Strikes) -> None:
        self._journal = journal
        self._strikes = strikes
        self._counts: dict[tuple[str, str], int] = {}  # by group and kind: collectives, messages, monitored barriers
        self._known: dict[str, list[int]] = {}  # the groups that are in the journal, and their members
        self._lock = threading.Lock()
        library: Any = torch.library.Library  # not typed
        self._library = library("c10d", "IMPL")
        self._kept: list[_RecordedWork] = []  # works in flight: C++ holds only their C++ half

    def install(self) -> None:
        """Register before torch's kernels, for the rest of the process's life."""
        # As in a simulation, to compare results.
        vars(c10d_module)["_object_to_tensor"] = with_zero_padding(c10d_module._object_to_tensor)
        serialization: Any = torch.serialization
        serialization._legacy_save = with_numbered_storages(serialization._legacy_save)
        for name, describe in _DESCRIBE.items():
            operator = getattr(torch.ops.c10d, name, None)
            if operator is not None:
                function = self._function(operator.default, describe)
                self._library.impl(name, function, _HERE.name, with_keyset=True)

    def _function(self, operator: Any, describe: Callable[..., list[_Call]]) -> Callable[..., object]:
        def recorded(keyset: Any, *args: object) -> object:
            calls = describe(*args)
            group = next(dist.ProcessGroup.unbox(arg) for arg in args if isinstance(arg, torch.ScriptObject))
            tickets = [self._issue(call, group) for call in calls]
            try:
                # Without the GIL, as torch calls it: a thread of Gloo's may want the GIL, to free a tensor, while it
                # holds the queue's lock.
                result = operator.redispatch(keyset.remove(_HERE), *args)
            except BaseException as error:
                for ticket in tickets:
                    ticket.refused(error)
                raise
            if result is None:  # monitored_barrier is over when it returns
                for ticket in tickets:
                    ticket.completed()
                return None
            outputs, boxed = result if isinstance(result, tuple) else (None, result)
            inner = Work.unbox(boxed)
            if inner is None:  # NCCL queued it on the caller's stream: only async_op=True gives a work
                for ticket in tickets:
                    ticket.completed()
                return result
            work = _RecordedWork(inner, tickets)
            self._keep(work)
            return work.boxed() if outputs is None else (outputs, work.boxed())

        return recorded

    def _keep(self, work: _RecordedWork) -> None:
        with self._lock:
            self._kept = [each for each in self._kept if not each.over]
            self._kept.append(work)

    def _issue(self, call: _Call, group: dist.ProcessGroup) -> _Ticket:
        ticket = _Ticket(self, call, group.group_name)
        self._strikes.before(call.op, ticket.group)
        known = group_world().pg_group_ranks.get(group)  # None for a group that the program puts together itself
        ranks = list(range(group.size()) if known is None else known)
        with self._lock:
            key = (ticket.group, call.kind)
            ticket.sequence = self._counts.get(key, 0)
            self._counts[key] = ticket.sequence + 1
            if known is not None and self._known.get(ticket.group) != ranks:
                self._known[ticket.group] = ranks
                self._journal.record(new_group, ticket.group, tuple(ranks), group.group_desc)
        self._journal.record(
            message_issued,
            call.op,
            ticket.group,
            ticket.sequence,
            call.nbytes,
            call.dtype,
            call.shape,
            call.peer,
            call.op != "monitored_barrier",
            call.tag,
        )
        peer = call.peer if call.kind == "message" else -1
        self._strikes.inside(call.op, ticket.group, ticket.sequence, ranks, peer, call.nbytes)
        return ticket


class _Ticket:
    """One issued operation, until its end has been recorded."""

    def __init__(self, recorder: Recorder, call: _Call, group: str) -> None:
        self._journal = recorder._journal
        self._strikes = recorder._strikes
        self._recorder = recorder
        self._call = call
        self._noted = False
        self.group = group
        self.sequence = 0

    def completed(self) -> None:
        """Record that it is over without an error."""
        if self._note_once():
            begin = self._journal.now_ns()
            self._journal.record(completed, self._call.op, self.group, self.sequence, begin, 0)
            if self._call.kind != "monitored_barrier":
                self._result()
            self._strikes.after(self._call.op, self.group, self.sequence)

    def failed(self, error: BaseException, *, begun: bool = True) -> None:
        """Record that it is over with an error; the tensors hold what had arrived, if it had `begun`."""
        if self._note_once():
            name, text = type(error).__name__, str(error)
            self._journal.record(failed, self._call.op, self.group, self.sequence, name, text)
            if begun and self._call.kind != "monitored_barrier":
                self._result()
            self._strikes.after(self._call.op, self.group, self.sequence)

    def refused(self, error: BaseException) -> None:
        """Record that it was not even begun: an argument is bad, or the connection is known to be closed."""
        if self._call.op in MESSAGES or self._call.op == "monitored_barrier":
            self.failed(error, begun=False)
        elif self._note_once():
            with self._recorder._lock:
                self._recorder._counts[self.group, self._call.kind] -= 1
            self._journal.note("refused", self._call.op, self.group, self.sequence)

    def _note_once(self) -> bool:
        first, self._noted = not self._noted, True
        return first

    def _result(self) -> None:
        self._journal.record(
            result_noted, self._call.op, self.group, self.sequence, content_checksum(self._call.outputs)
        )


class _RecordedWork(Work):
    """Wraps torch's own work, and records the end of each wait."""

    def __init__(self, inner: Any, tickets: Sequence[_Ticket]) -> None:
        super().__init__()
        self._inner = inner
        self._tickets = tickets
        self.over = False  # a wait has ended

    def _end(self, error: BaseException | None) -> None:
        self.over = True
        for ticket in self._tickets:
            if error is None:
                ticket.completed()
            else:
                ticket.failed(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            done = self._inner.wait() if not timeout else self._inner.wait(scaled(timeout))
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return bool(done)

    def get_future(self) -> Any:
        future = self._inner.get_future()

        def note(finished: Any) -> Any:
            try:
                value = finished.value()
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return value

        return future.then(note)

    def is_completed(self) -> bool:
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> Any:
        return self._inner.result()

    def synchronize(self) -> None:
        self._inner.synchronize()

    def source_rank(self) -> int:
        return int(self._inner._source_rank())

    _source_rank = source_rank

    def block_current_stream(self) -> None:
        self._inner.block_current_stream()
