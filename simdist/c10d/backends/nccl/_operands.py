"""The operands of collectives in one form, and the layouts of their bytes, made when the communicator is there.

A call checks its tensors, puts them into `Operands`, and launches those. NCCL finds other errors, in a type or a root,
when its function is called: after the call was announced, connected and recorded. So the layouts here find these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from simdist.c10d.backends.nccl import _arguments
from simdist.c10d.backends.nccl._arguments import require_tensor
from simdist.c10d.backends.nccl._errors import nccl_error
from simdist.c10d.calls import TABLE
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Exchanged, Gathered, Payload, Scattered
from simdist.c10d.surface import _memory
from simdist.c10d.surface._calls import reduction_of
from simdist.c10d.surface._options import AllReduceOptions
from simdist.device import memory_of
from simdist.inside.torch import NcclPlace
from simdist.process import Strike

if TYPE_CHECKING:
    from simdist.c10d.calls._payload import Factor
    from simdist.c10d.calls._read import Change

__all__ = ["KINDS", "Call", "Caller", "Operands", "all_gathered", "all_gathered_singly", "broadcast", "broadcasts"]
__all__ += ["exchanged", "flat", "gathered", "in_barrier", "in_place", "listed_tensors", "reduced", "require_devices"]
__all__ += ["scattered", "scattered_list", "scattered_singly"]

Tensor = torch.Tensor


# Torch's names of a method's works, in messages and in the recorder.
KINDS = {
    method.name: (
        "COALESCED" if method.name.endswith("_coalesced") else method.op_type,
        method.recorded or row.name,
    )
    for row in TABLE
    for method in row.methods
}
_OPTIONS = (dist.AllreduceOptions, dist.ReduceOptions, dist.ReduceScatterOptions)
_SUM: object = dist.ReduceOp.SUM


@dataclass(slots=True, eq=False)
class Call:
    """One call of an operation, with the data for its launch.

    `reads` are tensors that are only read, each with its representation in `payload`; `writes` are filled.
    """

    operation: Operation
    payload: Payload
    reads: list[tuple[Tensor, Tensor]]
    writes: list[Tensor]
    reduction_operands: object = ()
    factor: Factor | None = None
    peer: int = -1
    partners: frozenset[int] | None = None  # the ranks with which it exchanges data; None: all
    sequence: int = -1
    strike: Strike | None = None
    change: Change | None = None
    change_result: Change | None = None


@dataclass(slots=True, eq=False)
class Operands:
    """The arguments of a collective, for its layout, the recorder and its work.

    `inner` has the calls that torch makes for it. The recorder has an entry for each of them, one for each pair of an
    input and an output, before the entry of the whole.
    """

    name: str  # in events
    kind: tuple[str, str]  # torch's names for it, in messages and in the recorder
    inputs: list[Tensor]
    outputs: list[Tensor]
    layout: Layout | None = None  # None: the layout was made in the call
    opts: Any = None
    op: object = None  # the reduce operation, if it is not in the options
    root: int = -1
    lists: list[Tensor] | None = None  # of a root, in a gather or a scatter
    splits: Sequence[list[int]] | None = None  # of an all_to_all of single tensors: received and sent sizes
    blocks: bool = False  # the host waits for it, if the program does not
    memory: Tensor | None = None  # memory of the first output, as found by the layout
    inner: tuple[str, Sequence[tuple[Tensor, Tensor]]] | None = None


class Caller(Protocol):
    """The group for whose call a layout is made."""

    def rank(self) -> int:
        """Return the caller's rank in the group."""

    def size(self) -> int:
        """Return the number of ranks."""

    def operation(
        self,
        name: str,
        tensor: Tensor,
        size: int,
        reduction: str = "",
        root: int = -1,
        shape: tuple[int, ...] | None = None,
    ) -> Operation:
        """Return the operation with these parameters."""


Layout = Callable[[Caller, Operands], list[Call]]


def flat(tensor: Tensor) -> Tensor:
    """Return the memory of a device's tensor as a one-dimensional CPU tensor."""
    return _memory.flat(memory_of(tensor.data))


def _reduction_and_factor(operands: Operands) -> tuple[str, Factor | None]:
    """Return the name of the reduction, and the factor of PREMUL_SUM, which is only in its pickled form."""
    opts, op = operands.opts, operands.op
    if op is None and type(opts) in _OPTIONS and opts.reduceOp == _SUM:  # hot
        return "sum", None
    reduction = reduction_of(opts, op)
    if reduction != "premul_sum":
        return reduction, None
    given: Any = op if op is not None else getattr(opts, "reduceOp", opts)
    factor = given.__getstate__()[1]
    return reduction, factor.cpu() if isinstance(factor, Tensor) else factor


def listed_tensors(tensors: Any) -> list[Tensor]:
    """Return the tensors of a list with one list, or of a list."""
    inner = list(tensors)
    if inner and not isinstance(inner[0], Tensor):
        if len(inner) != 1:
            _arguments.single(inner)
        inner = list(inner[0])
    for tensor in inner:
        require_tensor(tensor)
    return inner


def _as_real(tensor: Tensor, operation: str = "", reduction: str = "") -> Tensor:
    """Return a complex tensor as its real and imaginary parts, as torch passes it to NCCL.

    Raises:
        RuntimeError: the reduction can't be done on the parts.
    """
    if not tensor.is_complex():
        return tensor
    if reduction not in ("", "sum", "avg", "premul_sum"):
        raise RuntimeError(f"{operation} does not support {reduction.upper()} on complex tensors")
    return torch.view_as_real(tensor)


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _require_root(group: Caller, name: str, root: int) -> None:
    if not 0 <= root < group.size():
        raise nccl_error(
            "ncclInvalidArgument",
            f"{name} : invalid root {root} (root should be in the 0..{group.size()} range)",
            NcclPlace.NO_SUCH_ROOT,
        )


def require_devices(*tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_cuda:
            raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")


# -- layouts -------------------------------------------------------------------------------------------------------


def in_place(group: Caller, operands: Operands) -> list[Call]:
    """All-reduce each tensor."""
    opts = operands.opts
    if type(opts) is AllReduceOptions and opts.reduction is not None and operands.op is None:  # hot
        reduction, factor = opts.reduction, None
    else:
        reduction, factor = _reduction_and_factor(operands)
    calls = []
    for tensor in operands.outputs:
        if tensor.is_complex():
            tensor = _as_real(tensor, operands.name, reduction)
        memory = memory_of(tensor.data)
        data = _memory.flat(memory)
        if tensor is operands.outputs[0]:
            operands.memory = memory
        operation = group.operation(operands.name, tensor, data.nbytes, reduction)
        calls.append(Call(operation, data, [], [tensor], [tensor], factor))
    return calls


def in_barrier(group: Caller, operands: Operands) -> list[Call]:
    """All-reduce one element."""
    (tensor,) = operands.outputs
    data = flat(tensor)
    operation = group.operation("barrier", tensor, data.nbytes, "sum")
    return [Call(operation, data, [], [tensor], [tensor])]


def reduced(group: Caller, operands: Operands) -> list[Call]:
    """Reduce to a root; the tensors of the other ranks stay as they are."""
    (tensor,) = operands.inputs
    _require_root(group, "Reduce", operands.root)
    reduction, factor = _reduction_and_factor(operands)
    parts = _as_real(tensor, "reduce", reduction)
    data = flat(parts)
    operation = group.operation("reduce", parts, data.nbytes, reduction, operands.root)
    if group.rank() == operands.root:
        return [Call(operation, data, [], [parts], [parts], factor)]
    return [Call(operation, data, [(parts, data)], [], [parts], factor)]


def broadcast(group: Caller, operands: Operands) -> list[Call]:
    """Broadcast the root's tensor in place."""
    (tensor,) = operands.inputs
    _require_root(group, "Broadcast", operands.root)
    parts = _as_real(tensor)
    data = flat(parts)
    operation = group.operation("broadcast", parts, data.nbytes, root=operands.root)
    reads, writes = ([(parts, data)], []) if group.rank() == operands.root else ([], [parts])
    return [Call(operation, data, reads, writes)]


def broadcasts(group: Caller, operands: Operands) -> list[Call]:
    """Broadcast once from each rank, in one launch."""
    calls = []
    for root, output in enumerate(operands.outputs):
        data = flat(output)
        operation = group.operation("broadcast", output, data.nbytes, root=root)
        calls.append(Call(operation, data, [], [output]))
    return calls


def all_gathered(group: Caller, operands: Operands) -> list[Call]:
    """Gather every rank's tensor into a list, of which NCCL fills as many as there are ranks."""
    (tensor,), outputs = operands.inputs, operands.outputs[: group.size()]
    data = flat(tensor)
    operation = group.operation("all_gather", tensor, data.nbytes)
    return [Call(operation, Gathered([flat(each) for each in outputs], data), [(tensor, data)], outputs)]


def all_gathered_singly(group: Caller, operands: Operands) -> list[Call]:
    """Gather every rank's tensor into one, for each pair."""
    calls = []
    for output, tensor in zip(operands.outputs, operands.inputs, strict=True):
        data, whole = flat(tensor), flat(output)
        parts = list(whole.chunk(group.size())) if whole.numel() else [whole] * group.size()
        operation = group.operation("all_gather", tensor, data.nbytes)
        calls.append(Call(operation, Gathered(parts, data), [(tensor, data)], [output]))
    return calls


def gathered(group: Caller, operands: Operands) -> list[Call]:
    """Gather every rank's tensor in a root's list."""
    (tensor,), outputs = operands.inputs, operands.lists
    data = flat(tensor)
    operation = group.operation("gather", tensor, data.nbytes, root=operands.root)
    flats = None if outputs is None else [flat(each) for each in outputs]
    return [Call(operation, Gathered(flats, data), [(tensor, data)], outputs or [])]


def scattered(group: Caller, operands: Operands) -> list[Call]:
    """Give each rank one tensor of a root's list."""
    (tensor,), inputs = operands.outputs, operands.lists
    data = flat(tensor)
    operation = group.operation("scatter", tensor, data.nbytes, root=operands.root)
    flats = None if inputs is None else [flat(each) for each in inputs]
    reads = [] if inputs is None else list(zip(inputs, flats or [], strict=True))
    return [Call(operation, Scattered(data, flats), reads, [tensor])]


def scattered_list(group: Caller, operands: Operands) -> list[Call]:
    """Reduce a list of tensors, one for each rank. Torch copies the list into one tensor of the first one's type.

    NCCL reads as many as there are ranks.
    """
    (output,), inputs = operands.outputs, operands.inputs[: group.size()]
    dtype = inputs[0].dtype
    chunks = [flat(_dense(each if each.dtype == dtype else each.to(dtype))) for each in inputs]
    return [_scattered(group, operands, output, inputs, chunks)]


def scattered_singly(group: Caller, operands: Operands) -> list[Call]:
    """Reduce one tensor and keep this rank's part of it, for each pair."""
    calls = []
    for output, tensor in zip(operands.outputs, operands.inputs, strict=True):
        whole = flat(_dense(tensor))
        chunks = list(whole.chunk(group.size())) if tensor.numel() else [whole] * group.size()
        calls.append(_scattered(group, operands, output, [tensor], chunks))
    return calls


def _scattered(group: Caller, operands: Operands, output: Tensor, inputs: list[Tensor], chunks: list[Tensor]) -> Call:
    reduction, factor = _reduction_and_factor(operands)
    data, shape = flat(output), tuple(inputs[0].shape)
    operation = group.operation("reduce_scatter", output, sum(each.nbytes for each in chunks), reduction, shape=shape)
    return Call(operation, Scattered(data, chunks), _reads(inputs, chunks), [output], [inputs], factor)


def exchanged(group: Caller, operands: Operands) -> list[Call]:
    """Send a part from each rank to each rank.

    Torch goes through the list of outputs: nothing is exchanged with ranks for which there are none.
    """
    outputs, inputs, splits = operands.outputs, operands.inputs, operands.splits
    if splits is None:
        inputs = inputs[: len(outputs)]
        if len(outputs) > group.size():
            _require_root(group, "Send", group.size())
        received, sent = [flat(tensor) for tensor in outputs], [flat(tensor) for tensor in inputs]
        missing = group.size() - len(outputs)
        received += [received[0][:0]] * missing
        sent += [sent[0][:0]] * missing
    else:
        received = list(torch.split_with_sizes(flat(outputs[0]), splits[0]))
        sent = list(torch.split_with_sizes(flat(inputs[0]), splits[1]))
    operation = group.operation("all_to_all", inputs[0], sum(each.nbytes for each in sent))
    partners = _partners(group.rank(), received, sent)
    reads = list(zip(inputs, sent, strict=False)) if splits is None else [(inputs[0], part) for part in sent]
    return [Call(operation, Exchanged(received, sent), reads, outputs, partners=partners)]


def _reads(inputs: list[Tensor], parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return each tensor that is read with its representation; or one tensor with each of its parts."""
    if len(inputs) == len(parts):
        return list(zip(inputs, parts, strict=True))
    return [(inputs[0], part) for part in parts]


def _partners(mine: int, received: Sequence[Tensor], sent: Sequence[Tensor]) -> frozenset[int] | None:
    """Return the ranks with which this one exchanges data; None: all. Torch makes no empty sends or receives."""
    pairs = list(zip(received, sent, strict=True))
    if all(there.numel() and here.numel() for there, here in pairs):
        return None
    return frozenset(
        rank for rank, (there, here) in enumerate(pairs) if rank != mine and (there.numel() or here.numel())
    )
