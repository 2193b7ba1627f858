"""The data plane: which rank gets which data. Tensors only; no time, no tasks. Ranks' inputs: `calls/_payload.py`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from simdist.c10d.calls import names_where
from simdist.c10d.calls._operation import Operation
from simdist.c10d.calls._payload import Exchanged, Flat, Gathered, Payload, Scattered, Sparse
from simdist.c10d.engine._strategies import Algorithm
from simdist.c10d.surface._memory import as_bytes, checksum
from simdist.native import copy_each

__all__ = ["CHECKSUM_BYTES", "Rooted", "divide", "end_exchange", "exchange_buffers", "exchange_fits", "exchange_sizes"]
__all__ += ["execute", "leave_reduce"]

Tensor = torch.Tensor

CHECKSUM_BYTES = 1 << 12  # bytes of a result from which an event's checksum is made: its first and last ones


def execute(algorithm: Algorithm, operation: Operation, payloads: Sequence[Payload], limit: int) -> int:
    """Execute an operation that needs everyone, for all ranks; returns the checksum of its result."""
    name = operation.name
    return 0 if name in _NOTHING_MOVES else _EXECUTE[name](algorithm, operation, payloads, limit)


def divide(algorithm: Algorithm, operation: Operation, tensor: Tensor, ranks: int) -> None:
    """Finish an average: divide the sum in `tensor`."""
    algorithm.divide([tensor], _is_complex(operation), ranks)


def exchange_sizes(payload: Exchanged) -> tuple[list[int], list[int]]:
    """Bytes that a rank of an all_to_all sends to and receives from each peer."""
    outputs, sent = payload
    return [_bytes(tensor) for tensor in sent], [_bytes(tensor) for tensor in outputs]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _reduction(algorithm: Algorithm, operation: Operation) -> str:
    return "sum" if algorithm.refused_result(operation) is not None else operation.reduction


def _is_complex(operation: Operation) -> bool:
    return operation.dtype_name.startswith("complex")


def _all_reduce(algorithm: Algorithm, operation: Operation, payloads: Sequence[Flat], limit: int) -> int:
    algorithm.all_reduce(payloads, _reduction(algorithm, operation), paired=_is_complex(operation))
    return checksum(payloads[:1], limit)


def _reduce(algorithm: Algorithm, operation: Operation, payloads: Sequence[Flat], limit: int) -> int:
    algorithm.reduce(payloads, _reduction(algorithm, operation), operation.root, paired=_is_complex(operation))
    return checksum([payloads[operation.root]], limit)


def leave_reduce(
    algorithm: Algorithm, operation: Operation, rank: int, ranks: int, tensor: Tensor, inputs: Mapping[int, Tensor]
) -> None:
    """Put into `tensor` the result of a reduce on a rank that is done before all have arrived."""
    algorithm.leave_reduce(tensor, inputs, _reduction(algorithm, operation), rank, ranks, paired=_is_complex(operation))


def _reduce_scatter(algorithm: Algorithm, operation: Operation, payloads: Sequence[Scattered], limit: int) -> int:
    # One all-reduce of a clone of the whole input (tensor form), or one for each entry (list form): the order of the
    # sums differs, because the chunks do.
    reduction, paired = _reduction(algorithm, operation), _is_complex(operation)
    outputs = [payload.filled for payload in payloads]
    given = [payload.given or [] for payload in payloads]
    if operation.is_list_of_reductions:
        for index, output in enumerate(outputs):
            algorithm.reduce_parts([chunks[index] for chunks in given], [(0, output)], reduction, paired=paired)
    else:
        starts = itertools.accumulate((output.numel() for output in outputs), initial=0)
        algorithm.reduce_parts(
            [whole for (whole,) in given], list(zip(starts, outputs, strict=False)), reduction, paired=paired
        )
        if operation.dtype_name == "bool":  # torch copies the part, and a copied boolean is 0 or 1
            for output in outputs:
                output.copy_(output != 0)
    return checksum(outputs, limit)


def _all_gather(algorithm: Algorithm, operation: Operation, payloads: Sequence[Gathered], limit: int) -> int:
    sources = [payload.given for payload in payloads]
    targets = [output for payload in payloads for output in payload.filled or ()]
    if not copy_each(targets, sources * len(payloads)):
        for output, source in zip(targets, sources * len(payloads), strict=True):
            output.copy_(source)
    return checksum(sources, limit)


def _all_to_all(algorithm: Algorithm, operation: Operation, payloads: Sequence[Exchanged], limit: int) -> int:
    outputs = [output for received, _ in payloads for output in received]
    sources = [sent[target] for target in range(len(payloads)) for _, sent in payloads]
    if not copy_each(outputs, sources):
        for output, source in zip(outputs, sources, strict=True):
            output.copy_(source)
    return checksum(outputs, limit)


def exchange_fits(payloads: Sequence[Exchanged]) -> bool:
    """True if every rank of an all_to_all expects from each other rank as much as that rank sends."""
    return all(
        output.numel() == payloads[source].given[target].numel()
        for target, (outputs, _) in enumerate(payloads)
        for source, output in enumerate(outputs)
    )


def exchange_buffers(payload: Exchanged, rank: int) -> tuple[Tensor, Tensor]:
    """Return a rank's data of an all_to_all as bytes: copies of its inputs and outputs, its own part already moved."""
    outputs, sent = payload
    outgoing = torch.cat([as_bytes(tensor) for tensor in sent])
    incoming = [as_bytes(tensor) for tensor in outputs]
    incoming[rank] = as_bytes(sent[rank])
    return outgoing, torch.cat(incoming)


def end_exchange(payload: Exchanged, received: Tensor) -> None:
    """Copy the receive buffer of `exchange_buffers` back into a rank's tensors."""
    outputs = payload.filled
    parts = torch.split_with_sizes(received, [_bytes(tensor) for tensor in outputs])
    for output, part in zip(outputs, parts, strict=True):
        as_bytes(output).copy_(part)


def _sparse_all_reduce(algorithm: Algorithm, operation: Operation, payloads: Sequence[Sparse], limit: int) -> int:
    # In rank order, then coalesced (AsyncSparseAllreduceWork).
    total = payloads[0].given
    for _, entries in payloads[1:]:
        total = total + entries
    total = total.coalesce()
    with torch.no_grad():
        for tensor, _ in payloads:
            tensor.copy_(total)
    return checksum([total.values().reshape(-1)], limit)


_EXECUTE: dict[str, Callable[[Algorithm, Operation, Sequence[Any], int], int]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "sparse_all_reduce": _sparse_all_reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}
_NOTHING_MOVES = names_where(lambda row: row.payload == "nothing")


@functools.lru_cache(maxsize=8192)
def _children(rank: int, root: int, ranks: int) -> list[int]:
    """The ranks to which a rank passes on a broadcast's data."""
    virtual = (rank - root) % ranks
    distances = [1 << k for k in range(virtual.bit_length(), ranks.bit_length())]
    return [(virtual + d + root) % ranks for d in distances if virtual + d < ranks]


class Rooted:
    """broadcast, gather and scatter, where ranks finish one by one.

    A transfer's data moves when the first of its two ends finishes, because that end may then reuse its buffer.
    """

    def __init__(self, operation: Operation, ranks: int) -> None:
        self._operation = operation
        self._ranks = ranks
        self._moved = {operation.root}

    def finish(self, rank: int, payloads: Mapping[int, Payload], limit: int) -> int:
        """Move the data that must be moved before `rank` may go on; returns its result's checksum, 0 for none."""
        name = self._operation.name
        root = self._operation.root
        if name == "broadcast":
            self._broadcast(rank, payloads)
            for child in _children(rank, self._operation.root, self._ranks):
                self._broadcast(child, payloads)
            return checksum([self._whole(rank, payloads)], limit)
        peers = [rank] if rank != root else [q for q in range(self._ranks) if q in payloads]
        for peer in peers:
            self._star(peer, payloads)
        if name == "gather":
            return checksum(cast("Gathered", payloads[root]).filled or (), limit) if rank == root else 0
        return checksum([cast("Scattered", payloads[rank]).filled], limit)

    def _broadcast(self, rank: int, payloads: Mapping[int, Payload]) -> None:
        if rank not in self._moved:
            parent = self._parent(rank)
            self._broadcast(parent, payloads)
            self._whole(rank, payloads).copy_(self._whole(parent, payloads))
            self._moved.add(rank)

    def _whole(self, rank: int, payloads: Mapping[int, Payload]) -> Tensor:
        return cast("Tensor", payloads[rank])

    def _parent(self, rank: int) -> int:
        virtual = (rank - self._operation.root) % self._ranks
        return (virtual - (1 << (virtual.bit_length() - 1)) + self._operation.root) % self._ranks

    def _star(self, peer: int, payloads: Mapping[int, Payload]) -> None:
        root = self._operation.root
        if peer != root and peer in self._moved:
            return
        self._moved.add(peer)
        if self._operation.name == "gather":
            to_root, from_peer = cast("tuple[Gathered, Gathered]", (payloads[root], payloads[peer]))
            target, source = (to_root.filled or [])[peer], from_peer.given
        else:
            to_peer, from_root = cast("tuple[Scattered, Scattered]", (payloads[peer], payloads[root]))
            target, source = to_peer.filled, (from_root.given or [])[peer]
        if source.numel() == target.numel():
            target.copy_(source)
        else:  # ranks disagree: the sent data fills a part of the expected
            size = min(source.numel(), target.numel())
            target[:size].copy_(source[:size])
