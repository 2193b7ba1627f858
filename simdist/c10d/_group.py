"""The process group that ranks hold: torch's interface in front of a `Member`.

A Python subclass of `dist.ProcessGroup` that also answers what torch asks of a backend object, since there is no C++
backend behind it. Checks and texts are those of ProcessGroupGloo (torch 2.13).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from simdist.c10d import _checks, _numerics
from simdist.c10d._communicator import Member
from simdist.c10d._compat import ProcessGroup, group_class_aliases, reduce_name, timeout_ns
from simdist.c10d._coverage import METHODS, Coverage
from simdist.c10d._mailbox import P2PWork
from simdist.c10d._work import SimWork
from simdist.errors import UnsupportedError

__all__ = ["Device", "GroupOptions", "SimProcessGroup"]

Tensor = torch.Tensor
_flat = _numerics.flat
_is_dense = _numerics.is_dense
_ALLREDUCE_OPTIONS = dist.AllreduceOptions
_SUM: Any = dist.ReduceOp.SUM


class GroupOptions:
    """Stands in for `ProcessGroupGloo._Options`."""

    def __init__(self, timeout: timedelta = timedelta(minutes=30), backend: str = "gloo") -> None:
        self._limit = timeout
        self._threads = 2
        self._devices: list[Any] = []
        self.backend = backend
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""

    @property
    def _timeout(self) -> timedelta:
        return self._limit

    @_timeout.setter
    def _timeout(self, timeout: timedelta | float) -> None:
        self._limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


class Device:
    """Stands in for `ProcessGroupGloo.Device`: the simulated network has one kind, and nothing to choose."""


class SimProcessGroup(ProcessGroup):  # type: ignore[misc]  # Any in the compat module
    """One rank's handle on a group."""

    def __init__(self, member: Member, store: Any, size: int, timeout: timedelta) -> None:
        super().__init__(member.rank, size)
        self._member = member
        self._communicator = member.communicator
        self._store = store
        self._size = size
        self._timeout_ns = round(timeout.total_seconds() * 1e9)
        self._sequence = 0
        self._name = ""
        self._description = "undefined"
        self.options = GroupOptions(timeout, self._communicator.personality.name)
        self.supports_splitting = True
        self.supports_coalescing = False
        self.supports_shrinking = False
        self.supports_time_estimate = False
        self.supports_tensor_alloc = False
        self._coalescing: list[Callable[[], SimWork]] | None = None

    # -- collectives ---------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, **kwargs: Any) -> SimWork:
        """All-reduce one tensor in place; also takes a bare tensor, and a reduce operation instead of options.

        With several tensors, all of them and on every rank are the operands, and all of them end up with the result.
        """
        several = None
        if type(tensors) is list and len(tensors) == 1:
            tensor = tensors[0]
        elif isinstance(tensors, Tensor):
            tensor = tensors
        else:
            several = _checks.alike(tensors)
            tensor = several[0]
        asynchronous = True
        limit_ns = self._timeout_ns
        reduction = "sum"
        if type(opts) is _ALLREDUCE_OPTIONS:
            # Hot: reading the operation's enum out of the options costs more than comparing it.
            if opts.reduceOp != _SUM:
                reduction = reduce_name(opts.reduceOp)
            limit_ns = timeout_ns(opts, limit_ns)
            asynchronous = opts.asyncOp
        elif opts is not None or timeout is not None or kwargs:
            reduction = _reduction_of(opts, kwargs.get("op"))
            limit_ns = self._limit(opts, timeout)
        if tensor.is_sparse:
            return self._sparse_all_reduce(several or [tensor], reduction, limit_ns)
        if several is not None and len(several) > 1:
            return self._all_reduce_several(several, reduction, limit_ns)
        data = _flat(tensor)
        element = data.element_size()
        return self._issue(
            ("all_reduce", data.numel() * element, element, tensor.dtype, tensor.shape, reduction),
            data,
            [tensor],
            limit_ns,
            asynchronous,
        )

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> SimWork:
        """All-reduce several tensors as one."""
        _checks.coalesced_reduce_arguments(tensors)
        reduction = _reduction_of(opts, None)
        parts = [_flat(tensor) for tensor in tensors]
        whole = torch.cat(parts)
        work = self._issue(
            (
                "all_reduce",
                whole.numel() * whole.element_size(),
                whole.element_size(),
                tensors[0].dtype,
                whole.shape,
                reduction,
                -1,
                tuple(tuple(tensor.shape) for tensor in tensors),
            ),
            whole,
            list(tensors),
            self._limit(opts),
        )
        pieces = torch.split_with_sizes(whole, [part.numel() for part in parts])
        return _then(work, lambda: [part.copy_(piece) for part, piece in zip(parts, pieces, strict=True)])

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Reduce to a root; what stays on the others is what Gloo leaves there."""
        opts, root, root_tensor = _root(opts, root)
        tensor = _checks.rooted_tensors("reduce", tensors, root, root_tensor, self._size)[0]
        data = _flat(tensor)
        return self._issue(
            (
                "reduce",
                data.numel() * data.element_size(),
                data.element_size(),
                tensor.dtype,
                tensor.shape,
                _reduction_of(opts, op),
                root,
            ),
            data,
            [tensor],
            self._limit(opts, timeout),
        )

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> SimWork:
        """Broadcast the root's `rootTensor` in place, into all tensors of a rank if there are several."""
        opts, root, root_tensor = _root(opts, root)
        listed = _checks.rooted_tensors("broadcast", tensors, root, root_tensor, self._size)
        tensor = listed[root_tensor]
        data = _flat(tensor)
        work = self._issue(
            (
                "broadcast",
                data.numel() * data.element_size(),
                data.element_size(),
                tensor.dtype,
                tensor.shape,
                "",
                root,
            ),
            data,
            listed,
            self._limit(opts, timeout),
            opts.asyncOp if opts is not None else True,
        )
        if len(listed) > 1:
            others = [_flat(other) for index, other in enumerate(listed) if index != root_tensor]
            _then(work, lambda: [other.copy_(data) for other in others])
        return work

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> SimWork:
        """Gather every rank's tensor on every rank; or its tensors, into as many output lists."""
        outputs, inputs = _checks.gather_arguments(output_tensors, input_tensors, self._size)
        limit_ns = self._limit(opts, timeout)
        tensor = inputs[0]
        data = _source(tensor)
        element = data.element_size()
        if len(inputs) == 1:
            key = ("all_gather", data.numel() * element, element, tensor.dtype, tensor.shape)
            targets = _targets(outputs[0])
            return _delivered(self._issue(key, (targets, data), outputs[0], limit_ns), outputs[0], targets)
        whole = torch.cat([_source(part) for part in inputs])
        received = [torch.empty_like(whole) for _ in range(self._size)]
        shape = (len(inputs), *tensor.shape)
        work = self._issue(
            ("all_gather", whole.numel() * element, element, tensor.dtype, shape), (received, whole), outputs, limit_ns
        )

        def spread() -> None:
            pieces = [piece for data in received for piece in data.chunk(len(inputs))]
            for output in outputs:
                for target, piece in zip(output, pieces, strict=True):
                    _put(target, piece)

        return _then(work, spread)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimWork:
        """Gather every rank's tensor into one."""
        outputs = _checks.gather_single_arguments(output, tensor, self._size)
        data = _flat(tensor)
        return self._issue(
            ("all_gather", data.numel() * data.element_size(), data.element_size(), tensor.dtype, tensor.shape),
            (outputs, data),
            list(output.chunk(self._size)) if output.dim() else [output],
            self._limit(opts),
        )

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> SimWork:
        """`all_gather_single` for several pairs."""
        works = [self.all_gather_single(o, t, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self._joint(works, list(outputs))

    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], opts: Any = None
    ) -> SimWork:
        """`allgather` of several tensors; `output_lists[r]` receives all of rank r's."""
        _checks.coalesced_gather_arguments(output_lists, tensors, self._size)
        parts = [_flat(tensor) for tensor in tensors]
        sizes = [part.numel() for part in parts]
        whole = torch.cat(parts)
        received = [torch.empty_like(whole) for _ in output_lists]
        work = self._issue(
            (
                "all_gather",
                whole.numel() * whole.element_size(),
                whole.element_size(),
                whole.dtype,
                whole.shape,
                "",
                -1,
                tuple(tuple(tensor.shape) for tensor in tensors),
            ),
            (received, whole),
            [list(outputs) for outputs in output_lists],
            self._limit(opts),
        )

        def spread() -> None:
            for outputs, data in zip(output_lists, received, strict=True):
                for output, piece in zip(outputs, torch.split_with_sizes(data, sizes), strict=True):
                    _flat(output).copy_(piece)

        return _then(work, spread)

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> SimWork:
        """Reduce a list of tensors, one for each rank."""
        output, inputs = _checks.scatter_arguments(output_tensors, input_tensors, self.rank(), self._size)
        reduction = _reduction_of(opts, op)
        chunks = [_flat(tensor) for tensor in inputs]  # each rank's memory, whatever its order
        if output.stride() != inputs[self.rank()].stride():
            chunks[self.rank()] = _flat(torch.empty_like(output).copy_(inputs[self.rank()]))
        size = sum(chunk.numel() * chunk.element_size() for chunk in chunks)
        self._sequence += self._size - 1  # one all-reduce for each entry
        work = self._issue(
            ("reduce_scatter", size, chunks[0].element_size(), output.dtype, output.shape, reduction, -1, "list"),
            (_flat(output), chunks),
            [output],
            self._limit(opts, timeout),
        )
        work.opaque = True
        return work

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> SimWork:
        """Reduce one tensor, and keep this rank's part of it."""
        _checks.scatter_single_arguments(output, tensor, self._size)
        reduction = _reduction_of(opts, None)
        whole = _flat(tensor.contiguous())
        work = self._issue(
            (
                "reduce_scatter",
                whole.numel() * whole.element_size(),
                whole.element_size(),
                tensor.dtype,
                tensor.shape,
                reduction,
                -1,
                "single",
            ),
            (_flat(output), whole),
            [output],
            self._limit(opts),
        )
        work.opaque = True
        return work

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any = None
    ) -> SimWork:
        """`reduce_scatter_single` for several pairs."""
        works = [self.reduce_scatter_single(o, t, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self._joint(works, list(outputs))

    def alltoall(self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None) -> SimWork:
        """Each rank sends `input_tensors[r]` to rank r."""
        _checks.exchange_arguments(output_tensors, input_tensors, self._size)
        # Gloo exchanges one row of elements in their logical order.
        received = [output.contiguous() for output in output_tensors]
        work = self._exchange(received, list(input_tensors), list(output_tensors), opts)
        spread = [pair for pair in zip(output_tensors, received, strict=True) if pair[0] is not pair[1]]
        return _then(work, lambda: [output.copy_(data) for output, data in spread]) if spread else work

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> SimWork:
        """`alltoall` with the parts of one tensor along its first dimension."""
        outputs = _checks.split(output, output_split_sizes, self._size, "output")
        inputs = _checks.split(tensor, input_split_sizes, self._size, "input")
        return self._exchange(outputs, inputs, [output], opts)

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Gather every rank's tensor on a root."""
        opts, root, _ = _root(opts, root)
        tensor, outputs = _checks.rooted_list(
            "gather", "output", input_tensors, output_tensors, root, self.rank(), self._size
        )
        data = _source(tensor)
        targets = None if outputs is None else _targets(outputs)
        work = self._issue(
            ("gather", data.numel() * data.element_size(), data.element_size(), tensor.dtype, tensor.shape, "", root),
            (targets, data),
            outputs or [],
            self._limit(opts, timeout),
        )
        return work if targets is None else _delivered(work, outputs or [], targets)

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> SimWork:
        """Give each rank one tensor of a root's list."""
        opts, root, _ = _root(opts, root)
        tensor, inputs = _checks.rooted_list(
            "scatter", "input", output_tensors, input_tensors, root, self.rank(), self._size
        )
        data = _flat(tensor)
        return self._issue(
            ("scatter", data.numel() * data.element_size(), data.element_size(), tensor.dtype, tensor.shape, "", root),
            (data, None if inputs is None else [_flat(part) for part in inputs]),
            [tensor],
            self._limit(opts, timeout),
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> SimWork:
        """Wait for every rank, after everything that this rank issued before."""
        return self._issue(("barrier",), None, [], self._limit(opts, timeout))

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names who is missing."""
        from simdist.c10d._monitored import monitored_barrier

        limit_ns = self._timeout_ns if timeout is None else round(timeout.total_seconds() * 1e9)
        self._sequence += 2 * (self._size - 1) if self.rank() == 0 else 2  # its messages
        monitored_barrier(self._member, limit_ns, self._timeout_ns, wait_all_ranks=wait_all_ranks)

    # -- point to point ------------------------------------------------------------------------------------------

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int = 0) -> P2PWork:
        """Send to a group rank."""
        return self._post("send", tensors, dst, tag)

    def recv(self, tensors: Sequence[Tensor], src: int, tag: int = 0) -> P2PWork:
        """Receive from a group rank."""
        return self._post("recv", tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> P2PWork:
        """Receive from whoever sends first."""
        return self._post("recv", tensors, None, tag)

    # -- what torch asks of a group ------------------------------------------------------------------------------

    def size(self) -> int:
        """How many ranks it has."""
        return self._size

    def name(self) -> str:
        """The backend's name."""
        return self._communicator.personality.name

    def getBackendName(self) -> str:
        """What C++ is told. Not "gloo": DDP's logger would then want a C++ ProcessGroupGloo."""
        return f"simdist:{self._communicator.personality.name}"

    def _get_backend_name(self) -> str:
        return self._communicator.personality.name

    def _get_backend(self, device: Any) -> SimProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def bound_device_id(self) -> None:
        """None: CPU groups are bound to no device."""
        return

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        if device is not None:
            raise UnsupportedError(f"a simulated {self.name()} group cannot be bound to {device}")

    @property
    def group_name(self) -> str:
        """Torch's name of the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = str(name)

    def getGroupName(self) -> str:
        """As `group_name`, for C++."""
        return self._name

    setGroupName = _set_group_name

    @property
    def group_desc(self) -> str:
        """What the user called it."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        """As `group_desc`, for C++."""
        return self._description

    setGroupDesc = _set_group_desc

    def get_group_store(self) -> Any:
        """The store at which the group met."""
        return self._store

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout_ns = round(timeout.total_seconds() * 1e9)
        self.options._timeout = timeout

    set_timeout = _set_default_timeout

    def _set_default_backend(self, backend: Any) -> None:
        """Nothing to choose: the group is its own backend."""

    def _register_backend(self, device: Any, backend_type: Any, backend: Any = None) -> None:
        """Nothing to register: the group is its own backend."""

    def _has_hooks(self) -> bool:
        return False

    def shutdown(self) -> None:
        """Does nothing, as Gloo's: the connections last until the group is destroyed."""

    def abort(self) -> None:
        """As `shutdown`."""

    def leave(self) -> None:
        """Give the group up: the connections close. Called when torch forgets it (`destroy_process_group`)."""
        self._communicator.leave(self._member)

    def eager_connect_single_device(self, device: Any) -> None:
        """Nothing to do: the connections are there."""

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:
        """Nothing to do: there is no symmetric memory."""

    def __repr__(self) -> str:
        return f"<simdist {self.name()} group {self._name!r} rank {self.rank()} of {self._size}>"

    # -- inside --------------------------------------------------------------------------------------------------

    def _issue(self, key: Any, inputs: Any, outputs: list[Any], limit_ns: int, asynchronous: bool = True) -> SimWork:
        self._sequence += 1
        communicator = self._communicator
        return communicator.issue(self._member, communicator.operation(key), inputs, outputs, limit_ns, asynchronous)

    def _limit(self, opts: Any, timeout: timedelta | None = None) -> int:
        if isinstance(opts, timedelta):  # a reduce operation, a root or nothing stands in the options' place
            timeout, opts = opts, None
        if timeout is not None:
            return round(timeout.total_seconds() * 1e9)
        return timeout_ns(opts, self._timeout_ns) if hasattr(opts, "timeout") else self._timeout_ns

    def _all_reduce_several(self, tensors: list[Tensor], reduction: str, limit_ns: int) -> SimWork:
        # Gloo first reduces into the first tensor, and copies the result to the others. Torch divides only the first.
        tensor = tensors[0]
        data, *others = [_flat(part) for part in tensors]
        element = data.element_size()
        averaged = reduction == "avg" and (tensor.is_floating_point() or tensor.is_complex())
        said = "sum" if averaged else reduction
        operation = self._communicator.operation(
            ("all_reduce", data.numel() * element, element, tensor.dtype, tensor.shape, said)
        )
        function = _numerics.combine(said, data.dtype)
        for other in others:
            function(data, other, data)

        def share() -> None:
            for other in others:
                other.copy_(data)
            if averaged:
                tensor.data.div_(self._size)

        self._sequence += 1
        return _then(self._communicator.issue(self._member, operation, data, tensors, limit_ns), share)

    def _sparse_all_reduce(self, tensors: list[Tensor], reduction: str, limit_ns: int) -> SimWork:
        if reduction != "sum":
            raise RuntimeError(
                "ProcessGroupGloo::allreduce: unsupported reduction operation "
                "(allreduce of sparse tensors only works with ReduceOp.SUM)"
            )
        tensor = tensors[0]
        total = tensor.detach()
        for other in tensors[1:]:
            total = total + other.detach()
        entries = total.coalesce()
        size = entries.values().numel() * entries.values().element_size()
        key = ("sparse_all_reduce", size, entries.values().element_size(), tensor.dtype, tensor.shape)
        work = self._issue(key, (tensor, entries), tensors, limit_ns)

        def share() -> None:
            with torch.no_grad():
                for other in tensors[1:]:
                    other.copy_(tensor)

        return _then(work, share) if len(tensors) > 1 else work

    def _exchange(self, outputs: list[Tensor], inputs: list[Tensor], result: list[Any], opts: Any) -> SimWork:
        element = inputs[0].element_size()
        size = sum(tensor.numel() for tensor in inputs) * element
        targets = _targets(outputs)
        work = self._issue(
            ("all_to_all", size, element, inputs[0].dtype, (size // element,)),
            (targets, [_flat(tensor.contiguous()) for tensor in inputs]),
            result,
            self._limit(opts),
        )
        return _delivered(work, outputs, targets)

    def _post(self, kind: str, tensors: Any, peer: int | None, tag: int) -> P2PWork:
        tensor = _checks.single(kind, tensors)
        _checks.require_contiguous(tensor)
        if tag < 0:
            raise RuntimeError("Tag must be nonnegative")
        _checks.require_peer(kind, peer, self.rank(), self._size)
        self._sequence += 1
        return self._communicator.mailbox.post(self._member, kind, peer, tag, tensor, self._timeout_ns)

    def _joint(self, works: list[SimWork], outputs: list[Any]) -> SimWork:
        """One work that is done when all of `works` are, and fails with the first that fails."""
        joint = SimWork.make(self._member, works[-1].name, works[-1].sequence, outputs)
        left = [work for work in works if not work.done]
        joint.error = next(
            (work.error for work in works if work.error is not None), None
        )  # some may have failed at once
        unwaited = joint.process.torch_state.unwaited
        for work in works:  # the caller waits for the joint work, and cannot wait for its parts
            if work in unwaited:
                unwaited[joint] = unwaited.pop(work)

        def settled(work: SimWork) -> None:
            left.remove(work)
            if joint.error is None:
                joint.error = work.error
            if not left:
                joint.finish()

        for work in left:
            work.after = [*(work.after or ()), functools.partial(settled, work)]
        if not left:
            joint.finish()
        joint.blockers = works[-1].blockers
        return joint


def _source(tensor: Tensor) -> Tensor:
    """What is sent of a tensor: its memory, or a copy of its elements if they do not lie together."""
    return _flat(tensor if _is_dense(tensor) else tensor.contiguous())


def _targets(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Flat memory for what is received; that of the tensors where it can be. See `_delivered`."""
    return [_flat(tensor if _is_dense(tensor) else tensor.data.contiguous()) for tensor in tensors]


def _delivered(work: SimWork, tensors: Sequence[Tensor], targets: Sequence[Tensor]) -> SimWork:
    """The same work; it also brings what was received to the tensors that have no flat memory."""
    scattered = [pair for pair in zip(tensors, targets, strict=True) if not _is_dense(pair[0])]

    def deliver() -> None:
        for tensor, data in scattered:
            _put(tensor, data)

    return _then(work, deliver) if scattered else work


def _put(tensor: Tensor, data: Tensor) -> None:
    if tensor.is_complex():
        data = torch.view_as_complex(data.view(-1, 2))
    tensor.data.copy_(data.view(tensor.dtype).view(tensor.shape))


def _root(opts: Any, root: int | None) -> tuple[Any, int, int]:
    """The options, if they are any, the root and its tensor; the root may stand in the options' place."""
    if isinstance(opts, int):
        opts, root = None, opts
    if opts is None:
        return None, root or 0, 0
    return opts, opts.rootRank if root is None else root, getattr(opts, "rootTensor", 0)


def _reduction_of(opts: Any, operation: Any) -> str:
    """The name of the reduce operation, given alone, in options, or in the options' place."""
    if operation is None:
        operation = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    return reduce_name(operation)


def _then(work: SimWork, action: Callable[[], Any]) -> SimWork:
    """Do `action` when the work has succeeded, before anyone sees it done."""
    if work.done:
        if work.error is None:
            action()
        return work
    finish = work.finish

    def finish_after() -> None:
        if work.error is None:
            action()
        finish()

    work.finish = finish_after  # type: ignore[method-assign]  # of this one work only
    return work


for _old, _new in group_class_aliases.items():
    setattr(SimProcessGroup, _old, getattr(SimProcessGroup, _new))


def _refusing(coverage: Coverage) -> Callable[..., NoReturn]:
    error = {"RuntimeError": RuntimeError, "UnsupportedError": UnsupportedError}[coverage.error]

    def refuse(self: SimProcessGroup, *args: Any, **kwargs: Any) -> NoReturn:
        raise error(coverage.says.replace("Backend gloo", f"Backend {self.name()}"))

    return refuse


for _old, _coverage in METHODS.items():
    if _coverage.status == "refused":  # torch's C++ would otherwise answer, for a backend that is not there
        setattr(SimProcessGroup, _old, _refusing(_coverage))
