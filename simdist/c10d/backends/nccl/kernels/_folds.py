"""The results of reductions, bit for bit as one ring over the ranks 0 to n-1 computes them (NCCL 2.29).

Chunk c starts raw at rank c+1 and goes up the ring, and each rank puts its own operand first:
`x_c + (x_{c-1} + (... + (x_{c+2} + x_{c+1})))`, rounded to the tensor's type at each hop. An average multiplies each
operand by 1/n, rounded to the type, before the sum; an average of integers divides the sum. The minimum or maximum of a
NaN and a number is the number. Eight-bit floats are added as halves.

A real machine has more rings, or trees, so its sums may differ in the last bits. If a model of NCCL gives a number of
channels, each channel has its part of the data and its own loops over it. In `tree_all_reduce` half of the channels
have one tree, half the other, and a rank adds its children's sums to its own data, one after the other.

If the extension is there (`simdist.native`), it goes first, and this module does the rest: everything, or all elements
from the first NaN on. For minimum and maximum, also from the first two zeros of different signs on: the C library
decides which of them wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from simdist.native import ring, tree

if TYPE_CHECKING:
    from simdist.c10d.calls._payload import Factor

__all__ = ["ALIGNED_BYTES", "LOOP_BYTES", "Operand", "Tree", "all_reduce", "averaged", "parts_of", "reduce_scatter"]
__all__ += ["reduce_to", "scaled", "tree_all_reduce"]

Tensor = torch.Tensor
Combine = Callable[[Tensor, Tensor], Tensor]
Tree = Sequence[Sequence[int]]  # the children of each rank, in the order in which it adds them

# Bytes of a chunk, by protocol: four steps of an eighth of the buffer; or one step, less the share of the flags.
LOOP_BYTES = {"simple": 2 << 20, "ll": 32 << 10, "ll128": 576_000}
ALIGNED_BYTES = 16
_FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)


class Operand:
    """One rank's input: flat memory, its reduction, and the factor by which it is multiplied first."""

    __slots__ = ("combine", "data", "factor", "kind", "reduction")

    def __init__(self, data: Tensor, reduction: str, factor: Factor | None, *, is_bool: bool) -> None:
        self.data = data
        self.factor = factor
        self.reduction = reduction
        self.kind = "max" if is_bool and reduction == "sum" else reduction
        self.combine = _COMBINE[self.kind]


def _as_halves(combine: Combine) -> Combine:
    def do(local: Tensor, received: Tensor) -> Tensor:
        if local.dtype in _FLOAT8:
            return combine(local.half(), received.half()).to(local.dtype)
        return combine(local, received)

    return do


def _least(local: Tensor, received: Tensor) -> Tensor:
    return torch.fmin(local, received) if local.is_floating_point() else torch.minimum(local, received)


def _most(local: Tensor, received: Tensor) -> Tensor:
    return torch.fmax(local, received) if local.is_floating_point() else torch.maximum(local, received)


_COMBINE: dict[str, Combine] = {
    "sum": _as_halves(torch.add),
    "avg": _as_halves(torch.add),
    "premul_sum": _as_halves(torch.add),
    "product": _as_halves(torch.mul),
    "min": _as_halves(_least),
    "max": _as_halves(_most),
}


_NAMES = {"min": "fmin", "max": "fmax"}  # names in the extension


def scaled(operand: Operand, ranks: int) -> Tensor:
    """Return the operand as it goes into the sum: a new tensor if it is scaled, else its own data."""
    data = operand.data
    if operand.reduction == "premul_sum":
        factor = operand.factor
        if isinstance(factor, Tensor):
            return data * factor.reshape(()).to(data.dtype)
        return data * torch.tensor(factor, dtype=data.dtype)
    if operand.reduction == "avg" and data.is_floating_point():
        return data * torch.tensor(1.0 / ranks, dtype=data.dtype)
    return data


def averaged(total: Tensor, operand: Operand, ranks: int) -> Tensor:
    if operand.reduction == "avg" and not total.is_floating_point():
        return torch.div(total, ranks, rounding_mode="trunc")
    return total


def _chunk(owner: int, parts: Sequence[Tensor], operands: Sequence[Operand]) -> Tensor:
    """Return the total of the chunk that ends at rank `owner`."""
    ranks = len(parts)
    running = parts[(owner + 1) % ranks]
    for hop in range(2, ranks + 1):
        rank = (owner + hop) % ranks
        local = parts[rank]
        if running.dtype != local.dtype:  # ranks disagree: read the same bytes as another type
            running = running.view(local.dtype)
        running = operands[rank].combine(local, running)
    return averaged(running, operands[owner], ranks)


def all_reduce(operands: Sequence[Operand], channels: int = 1, loop_bytes: int = LOOP_BYTES["simple"]) -> None:
    """Reduce the operands, in place on all ranks."""
    ranks = len(operands)
    data = [operand.data for operand in operands]
    if ranks == 1:
        ready = scaled(operands[0], ranks)
        if ready is not data[0]:
            data[0].copy_(ready)
        return
    loops = list(_loops(data[0].numel(), data[0].element_size(), ranks, channels, loop_bytes))
    done = 0
    for place, end, size in loops:
        done = _by_ring(operands, None, first=place, last=end, chunk=size)
        if done < end:
            break
    if done < data[0].numel():
        _all_reduce(operands, loops, done)


def _all_reduce(operands: Sequence[Operand], loops: Sequence[tuple[int, int, int]], done: int) -> None:
    """Reduce with torch, from element `done` on."""
    ranks = len(operands)
    data = [operand.data for operand in operands]
    ready = [scaled(operand, ranks) for operand in operands]
    for place, end, size in loops:
        for owner, first in enumerate(range(place, end, size)):
            last = min(first + size, end)
            if last > done:
                total = _chunk(owner, [each[first:last] for each in ready], operands)
                begin = max(first, done)
                _put(total[begin - first :], data, begin, last)


def _loops(length: int, element: int, ranks: int, channels: int, loop_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the loops of all channels over `length` elements: begin, end, and elements of a chunk."""
    chunk = loop_bytes // element
    aligned = max(1, ALIGNED_BYTES // element)
    parts = [(0, length)] if channels == 1 else parts_of(length, channels, aligned)  # hot
    for place, end in parts:
        while place < end:
            left = end - place
            each = -(-left // ranks)
            size = chunk if left >= ranks * chunk else -(-each // aligned) * aligned
            yield place, min(place + ranks * size, end), size
            place += ranks * size


def _by_ring(
    operands: Sequence[Operand],
    targets: Sequence[Tensor] | None,
    *,
    chunk: int,
    first: int = 0,
    last: int | None = None,
    owner: int = 0,
    each: bool = False,
) -> int:
    """Let the extension reduce, by default in place; return the first element that it has not done."""
    named = _native_name(operands)
    if named is None:
        return first
    return ring(
        named[0],
        [operand.data for operand in operands],
        targets,
        step=1,
        chunk=chunk,
        first=first,
        last=last,
        owner=owner,
        factor=named[1],
        each=each,
    )


def _native_name(operands: Sequence[Operand]) -> tuple[str, float] | None:
    """Return the extension's name of the operation and the factor of its operands; None if it lacks the operation."""
    kind, data = operands[0].kind, operands[0].data
    if kind == "premul_sum" or len({operand.kind for operand in operands}) > 1:
        return None
    if kind == "avg":
        return ("sum", 1.0 / len(operands)) if data.is_floating_point() else None
    return _NAMES.get(kind, kind), 0.0


def tree_all_reduce(operands: Sequence[Operand], trees: Sequence[tuple[int, Tree]], channels: int) -> None:
    """Reduce the operands in place on all ranks, up a tree to its root. `trees` has two trees, each with its root."""
    ranks = len(operands)
    data = [operand.data for operand in operands]
    aligned = max(1, ALIGNED_BYTES // data[0].element_size())
    parts = [
        (first, last, *trees[2 * channel // max(2, channels)])
        for channel, (first, last) in enumerate(parts_of(data[0].numel(), channels, aligned))
    ]
    done = 0
    named = _native_name(operands)
    for first, last, root, children in parts:
        done = first if named is None else tree(named[0], data, children, root, first=first, last=last, factor=named[1])
        if done < last:
            break
    if done == data[0].numel():
        return
    ready = [scaled(operand, ranks) for operand in operands]
    for first, last, root, children in parts:
        if last > done:
            total = averaged(
                _summed(root, children, [each[first:last] for each in ready], operands), operands[root], ranks
            )
            begin = max(first, done)
            _put(total[begin - first :], data, begin, last)


def _summed(root: int, tree: Tree, parts: Sequence[Tensor], operands: Sequence[Operand]) -> Tensor:
    order, seen = [root], 0
    while seen < len(order):  # parents before their children
        order += tree[order[seen]]
        seen += 1
    sums: dict[int, Tensor] = {}
    for rank in reversed(order):
        running = parts[rank]
        for child in tree[rank]:
            received = sums.pop(child)
            running = operands[rank].combine(running, received.view(running.dtype))
        sums[rank] = running
    return sums[root]


def parts_of(length: int, channels: int, aligned: int) -> list[tuple[int, int]]:
    """Return the part of each channel of `length` elements, as (first, end)."""
    each = -(-length // channels)
    size = max(aligned, -(-each // aligned) * aligned)
    return [(first, min(first + size, length)) for first in range(0, length, size)]


def _put(total: Tensor, data: Sequence[Tensor], first: int, last: int) -> None:
    for target in data:
        target[first:last] = total if target.dtype == total.dtype else total.view(target.dtype)


def reduce_to(owner: int, operands: Sequence[Operand], output: Tensor) -> None:
    """Reduce the operands, and put the total into the output of one rank."""
    ranks, length = len(operands), output.numel()
    done = _by_ring(operands, [output], chunk=max(1, length), owner=owner) if ranks > 1 else 0
    if done < length or not length:
        ready = [scaled(operand, ranks) for operand in operands]
        output[done:].copy_((_chunk(owner, ready, operands) if ranks > 1 else ready[0])[done:])


def reduce_scatter(operands: Sequence[Operand], outputs: Sequence[Tensor]) -> int:
    """Reduce the operands, and put the k-th equal part of the total into the k-th output, which may lie in its operand.

    Only the extension can do this. Returns the first element that it has not done.
    """
    each = outputs[0].numel()
    return _by_ring(operands, outputs, chunk=each, each=True) if each and len(operands) > 1 else 0
