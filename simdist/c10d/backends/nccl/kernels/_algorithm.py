"""How NCCL does each operation: its result, and its cost on one ring (NCCL 2.29)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from simdist.c10d.backends.nccl.kernels import _folds
from simdist.c10d.backends.nccl.kernels._collisions import LARGEST_LL, Plan, Wires, collide, collide_messages
from simdist.c10d.backends.nccl.kernels._folds import Operand
from simdist.c10d.backends.nccl.kernels._preferences import Preferences
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Brought, Exchanged, Gathered, Scattered
from simdist.c10d.engine import Collision, StreamAlgorithm
from simdist.c10d.engine._data import CHECKSUM_BYTES
from simdist.c10d.surface._memory import as_bytes, checksum
from simdist.cluster import Cluster
from simdist.native import copy_each

__all__ = ["Calls", "NcclAlgorithm", "brought", "operands"]

Tensor = torch.Tensor
Calls = Sequence[Brought]
_P = TypeVar("_P")


class NcclAlgorithm(StreamAlgorithm):
    """One ring over ranks 0 to n-1."""

    def duration_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> int:
        """Return the time of the steps around the ring, one latency each, and of the bytes over the slowest link."""
        if ranks == 1:
            return 0
        steps, amount = _ring(operation, ranks)
        return round(steps * latency_ns + amount * byte_ns)

    def traffic(self, operation: Operation, ranks: int) -> Sequence[tuple[int, int, float]]:
        """Return the bytes that ranks send each other."""
        if ranks == 1:
            return []
        each = operation.size / ranks
        if operation.name == "all_to_all":
            return [(a, b, each) for a in range(ranks) for b in range(ranks) if a != b]
        if operation.name in ("gather", "scatter"):
            others = [rank for rank in range(ranks) if rank != operation.root]
            pairs = [
                (rank, operation.root) if operation.name == "gather" else (operation.root, rank) for rank in others
            ]
            return [(*pair, float(operation.size)) for pair in pairs]
        _, amount = _ring(operation, ranks)
        return [(rank, (rank + 1) % ranks, amount) for rank in range(ranks)]

    def fitted(self, cluster: Cluster, ranks: Sequence[int]) -> StreamAlgorithm:
        """Return the algorithm that NCCL would choose on the cluster, if the cluster has a model of NCCL."""
        if cluster.nccl is None or len(ranks) == 1:
            return self
        from simdist.c10d.backends.nccl.kernels._tuned import TunedAlgorithm  # few worlds need it

        return TunedAlgorithm(cluster, cluster.nccl, ranks)

    def heed(self, rank: int, preferences: Preferences | None) -> None:
        """Take the preferences of a rank's environment; ignored, because one ring leaves no choice."""

    def meets(self, calls: Calls) -> bool:
        """True if calls match. Other sizes, operations or roots collide; a type of equal size is reinterpreted."""
        first = calls[0][0]
        name, root, element, size = first.name, first.root, first.element, first.size
        exchanges = name == "all_to_all"
        for each, _, _ in calls:
            if each is not first and not (
                each.name == name
                and (exchanges or (each.root == root and each.element == element and each.size == size))
            ):
                return False
        return not exchanges or _exchange_fits(calls)

    def execute(self, calls: Calls) -> int:
        """Do the operation, and return a checksum of the result."""
        name = calls[0][0].name
        left = self._all_reduce(calls) if name in ("all_reduce", "barrier") else _EXECUTE[name](calls)
        return checksum(left, CHECKSUM_BYTES)

    def plans(self, operations: Sequence[Operation]) -> list[Plan]:
        """Return a plan for each of several calls that do not match."""
        copies = [len(operations) if each.name == "all_gather" else 1 for each in operations]
        largest = max(each.size * count for each, count in zip(operations, copies, strict=True))
        return [Plan("ll" if largest <= LARGEST_LL else "simple")] * len(operations)

    def collide(self, calls: Calls, left: Wires) -> Collision:
        """Run the kernels of calls that do not match, each by its own call."""
        return collide(calls, self.plans([operation for operation, _, _ in calls]), left)

    def collide_messages(self, pair: tuple[int, int], calls: Calls, left: Wires) -> Collision:
        """Run the kernels of a send and a receive that do not match."""
        return collide_messages(pair, calls, left)

    def _all_reduce(self, calls: Calls) -> list[Tensor]:
        datas = brought(calls, Tensor)
        _folds.all_reduce(operands(calls, datas))
        return datas[:1]

    def all_reduce(self, tensors: Sequence[Tensor], reduction: str, *, paired: bool = False) -> None:
        """Reduce the flat tensors of all ranks, in place on each of them."""
        _folds.all_reduce([Operand(tensor, reduction, None, is_bool=False) for tensor in tensors])

    def reduce(self, tensors: Sequence[Tensor], reduction: str, root: int, *, paired: bool = False) -> None:
        """Reduce the flat tensors of all ranks to the root; the other tensors stay as they are."""
        operands = [Operand(tensor, reduction, None, is_bool=False) for tensor in tensors]
        _folds.reduce_to(root, operands, tensors[root])

    def combine(self, reduction: str, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], None]:
        """Return the function `(local, received, out)` of one hop."""
        function = Operand(torch.empty(0, dtype=dtype), reduction, None, is_bool=dtype is torch.bool).combine

        def combine(local: Tensor, received: Tensor, out: Tensor) -> None:
            out.copy_(function(local, received))

        return combine


def _ring(operation: Operation, ranks: int) -> tuple[int, float]:
    """Return the steps of an operation, and the bytes that each link of the ring carries."""
    name, size = operation.name, operation.size
    if name in ("all_reduce", "barrier"):
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size
    if name == "reduce_scatter":
        return ranks - 1, (ranks - 1) / ranks * size
    if name == "all_gather":
        return ranks - 1, float((ranks - 1) * size)
    if name in ("gather", "scatter"):
        return 1, float((ranks - 1) * size)
    if name == "all_to_all":
        return 1, (ranks - 1) / ranks * size
    return ranks - 1, float(size)  # broadcast, reduce: a chain, in pieces


def brought(calls: Calls, kind: type[_P]) -> list[_P]:
    """Return the payloads of all ranks, which are of one kind."""
    found: list[Any] = [call.payload for call in calls]
    return found


def operands(calls: Calls, datas: Sequence[Tensor]) -> list[Operand]:
    """Return the operand of each rank."""
    return [
        Operand(data, operation.reduction, factor, is_bool=operation.dtype_name == "bool")
        for (operation, _, factor), data in zip(calls, datas, strict=True)
    ]


def _reduce(calls: Calls) -> list[Tensor]:
    datas = brought(calls, Tensor)
    root = calls[0][0].root
    _folds.reduce_to(root, operands(calls, datas), datas[root])
    return [datas[root]]


def _reduce_scatter(calls: Calls) -> list[Tensor]:
    payloads = brought(calls, Scattered)
    outputs, given = [payload.filled for payload in payloads], [payload.given or [] for payload in payloads]
    wholes = [_joined(chunks) for chunks in given]
    known = [whole for whole in wholes if whole is not None]
    done = _folds.reduce_scatter(operands(calls, known), outputs) if len(known) == len(wholes) else 0
    # An output may lie in its rank's input, which the totals of the other ranks still need.
    totals = []
    for owner, output in enumerate(outputs):
        begin = min(done, output.numel())
        done -= begin
        if begin < output.numel():
            total = torch.empty_like(output)
            _folds.reduce_to(owner, operands(calls, [chunks[owner] for chunks in given]), total)
            totals.append((output[begin:], total[begin:]))
    for part, total in totals:
        part.copy_(total)
    return outputs


def _joined(chunks: Sequence[Tensor]) -> Tensor | None:
    """Return adjacent chunks as one tensor; None if they are not adjacent."""
    first, count = chunks[0], len(chunks)
    begin, size, length = first.data_ptr(), first.nbytes, first.numel()
    if any(chunk.data_ptr() != begin + index * size or chunk.nbytes != size for index, chunk in enumerate(chunks)):
        return None
    if first.untyped_storage().nbytes() < (first.storage_offset() + count * length) * first.itemsize:
        return None  # adjacent by chance
    return first.as_strided((count * length,), (1,))


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy bytes, in order."""
    if not copy_each(targets, sources, as_bytes=True):
        for target, source in zip(targets, sources, strict=True):
            as_bytes(target).copy_(as_bytes(source))


def _broadcast(calls: Calls) -> list[Tensor]:
    datas = brought(calls, Tensor)
    root = calls[0][0].root
    others = datas[:root] + datas[root + 1 :]
    _copy(others, [datas[root]] * len(others))
    return datas[:1]


def _all_gather(calls: Calls) -> list[Tensor]:
    payloads = brought(calls, Gathered)
    sources = [payload.given for payload in payloads]
    _copy([output for payload in payloads for output in payload.filled or ()], sources * len(calls))
    return sources


def _all_to_all(calls: Calls) -> list[Tensor]:
    payloads = brought(calls, Exchanged)
    filled = [output for payload in payloads for output in payload.filled]
    _copy(filled, [payload.given[target] for target in range(len(calls)) for payload in payloads])
    return filled


def _exchange_fits(calls: Calls) -> bool:
    payloads = brought(calls, Exchanged)
    return all(
        output.nbytes == sent.nbytes
        for target, payload in enumerate(payloads)
        for output, sent in zip(payload.filled, [other.given[target] for other in payloads], strict=True)
    )


def _gather(calls: Calls) -> list[Tensor]:
    payloads = brought(calls, Gathered)
    outputs = payloads[calls[0].operation.root].filled or []
    _copy(outputs, [payload.given for payload in payloads])
    return outputs


def _scatter(calls: Calls) -> list[Tensor]:
    payloads = brought(calls, Scattered)
    outputs = [payload.filled for payload in payloads]
    _copy(outputs, payloads[calls[0].operation.root].given or [])
    return outputs


_EXECUTE: dict[str, Callable[[Calls], list[Tensor]]] = {
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
}
