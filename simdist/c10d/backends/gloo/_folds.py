"""The results of collectives, bit for bit as Gloo computes them.

Chunk c of a reduction starts raw at rank c-1 and goes down the ring, and each rank puts its own operand first:
`x_c + (x_{c+1} + (... + (x_{c-2} + x_{c-1})))`, rounded to the tensor's type at each hop. The chunks are those of
Gloo's segment arithmetic. `max` and `min` keep the local operand unless the received one is strictly better, so a NaN
that is held stays and a NaN that is received is dropped. Average is the sum, then one true division.

The work is done in blocks small enough that every input is read once, and every output written once, while the block
is in the cache; there is no copy of a whole payload. If the extension is there (`simdist.native`), it goes first, and
this module does the rest: everything, or all elements from the first NaN of a sum on. The bits of a NaN depend on its
position in torch's loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from simdist.c10d.backends.gloo._costs import reduce_segments, segments
from simdist.inside.python import number_kinds
from simdist.inside.torch import copy_into_each
from simdist.native import partial_ring, ring

__all__ = ["all_reduce", "combine", "divide", "leave_reduce", "reduce", "reduce_parts"]

Tensor = torch.Tensor
Combine = Callable[[Tensor, Tensor, Tensor], None]

_SHEARED_BYTES = 16 << 10  # times ranks; above, the call overhead of one step per chunk and rank no longer matters
_ACCUMULATED = 1 << 14  # elements up to which numpy's fold, with all its partial results, is the cheapest
_MANY = 16  # ranks from which numpy's overhead per call pays
_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "avg": np.add, "product": np.multiply}
_CACHE_BYTES = 1 << 21  # limit for the blocks of all ranks together
_SUMS = ("sum", "avg")
_NUMBERS: dict[torch.dtype, Any] = {getattr(torch, name): kind for name, kind in number_kinds.items()}
_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)


def combine(reduction: str, dtype: torch.dtype) -> Combine:
    """Return the function `(local, received, out)` of a reduce operation; `out` may be `received`."""
    if reduction in ("max", "min"):
        if dtype in _INTEGERS:
            return _maximum if reduction == "max" else _minimum
        return _max_keeping_local if reduction == "max" else _min_keeping_local
    return _COMBINE[reduction]


def _sum(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.add(local, received, out=out)


def _product(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.mul(local, received, out=out)


def _maximum(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.maximum(local, received, out=out)


def _minimum(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.minimum(local, received, out=out)


def _max_keeping_local(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.where(local < received, received, local, out=out)


def _min_keeping_local(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.where(received < local, received, local, out=out)


def _and(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.bitwise_and(local, received, out=out)


def _or(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.bitwise_or(local, received, out=out)


def _xor(local: Tensor, received: Tensor, out: Tensor) -> None:
    torch.bitwise_xor(local, received, out=out)


_COMBINE: dict[str, Combine] = {
    "sum": _sum,
    "avg": _sum,
    "product": _product,
    "band": _and,
    "bor": _or,
    "bxor": _xor,
}


def all_reduce(tensors: Sequence[Tensor], reduction: str, *, paired: bool = False) -> None:
    """Reduce flat `tensors`, one per group rank, in place on all of them.

    `paired`: the elements are the parts of complex numbers, and an average divides as complex numbers do.
    """
    ranks = len(tensors)
    length = tensors[0].numel()
    if length == 0:
        return
    done = _by_ring(tensors, None, reduction, length, paired) if ranks > 1 else 0
    if 0 < done < length:
        rest = [tensor.clone() for tensor in tensors]
        _all_reduce(rest, reduction, paired)
        for tensor, other in zip(tensors, rest, strict=True):
            tensor[done:] = other[done:]
    elif not done:
        _all_reduce(tensors, reduction, paired)


def _by_ring(
    tensors: Sequence[Tensor],
    targets: Sequence[Tensor] | None,
    reduction: str,
    length: int,
    paired: bool,
    each: bool = False,
) -> int:
    """Let the extension do it. Return the number of elements, from the first, that it has done."""
    ranks = len(tensors)
    average = reduction == "avg"
    if average and paired:
        return 0  # the extension cannot do complex numbers
    element = tensors[0].element_size()
    return ring(
        "sum" if average else reduction,
        tensors,
        targets,
        step=-1,
        chunk=_chunk(length, element, ranks),
        divisor=ranks if average else 0.0,
        each=each,
        alike=True,  # the engine has compared the calls, and its tensors are flat
    )


def reduce_parts(
    wholes: Sequence[Tensor], parts: Sequence[tuple[int, Tensor]], reduction: str, *, paired: bool = False
) -> None:
    """Reduce flat `wholes`, one per group rank, and put parts of the total into other tensors.

    The wholes stay as they are. `parts`: the first element of each part, and the tensor for it, which may lie in the
    memory of a whole.
    """
    length, many = wholes[0].numel(), len(parts)
    if length == 0:
        return
    done = 0
    if len(wholes) > 1 and all(start * many == index * length for index, (start, _) in enumerate(parts)):
        done = _by_ring(wholes, [output for _, output in parts], reduction, length, paired, each=many > 1)
    if done < length:
        copies = [whole.clone() for whole in wholes]
        _all_reduce(copies, reduction, paired)
        for start, output in parts:
            skipped = min(max(0, done - start), output.numel())
            output[skipped:] = copies[0][start + skipped : start + output.numel()]


def _all_reduce(tensors: Sequence[Tensor], reduction: str, paired: bool) -> None:
    ranks = len(tensors)
    length = tensors[0].numel()
    if ranks > 1 and not (length == 1 and reduction in _SUMS and _sum_numbers(tensors)):
        function = combine(reduction, tensors[0].dtype)
        element = tensors[0].element_size()
        chunk = _chunk(length, element, ranks)
        if length <= chunk and ranks < _MANY:
            running = tensors[-1].clone()  # one chunk, that of rank 0
            for hop in range(2, ranks + 1):
                function(tensors[-hop], running, running)
            copy_into_each(list(tensors), [running] * ranks)
        elif length * element <= ranks * _SHEARED_BYTES:
            _sheared(tensors, reduction, function, chunk, length)
        else:
            block = max(256, _CACHE_BYTES // ranks // element)
            sizes = [min(chunk, length - start) for start in range(0, length, chunk)]
            chunks = [torch.split_with_sizes(tensor, sizes) for tensor in tensors]
            for owner, size in enumerate(sizes):
                views = [parts[owner] for parts in chunks]
                if size <= block:
                    _block(views, function, owner)
                else:
                    for first in range(0, size, block):
                        _block([view[first : first + block] for view in views], function, owner)
    if reduction == "avg":
        divide(tensors, paired, ranks)


def _sum_numbers(tensors: Sequence[Tensor]) -> bool:
    """Sum single numbers in place; torch calls would take ten times as long. False if it did nothing.

    Each sum of two is torch's, bit for bit: a sum of two floats in double precision, rounded to a float, is the
    rounded sum. Only torch knows what becomes of two NaNs, so NaNs are left to torch.
    """
    kind = _NUMBERS.get(tensors[0].dtype)
    addresses = [tensor.data_ptr() for tensor in tensors]
    if kind is None or not all(addresses):
        return False
    numbers = [kind.from_address(address) for address in addresses]
    running = kind(numbers[-1].value)
    for number in numbers[-2::-1]:
        running.value += number.value
    total = running.value
    if total != total:
        return False
    for number in numbers:
        number.value = total
    return True


@functools.lru_cache(maxsize=256)
def _chunk(length: int, element: int, ranks: int) -> int:
    """Return how many elements of an all_reduce each rank owns."""
    _, per_rank, segment = segments(length * element, element, ranks)
    return per_rank * segment // element


def divide(tensors: Sequence[Tensor], paired: bool, ranks: int) -> None:
    """Divide sums by the number of ranks; `paired` elements are the parts of complex numbers."""
    # Torch's division of a complex number by a real one rounds differently from a division of its parts.
    for tensor in tensors:
        whole = torch.view_as_complex(tensor.view(-1, 2)) if paired else tensor
        whole.div_(ranks)


def _sheared(tensors: Sequence[Tensor], reduction: str, function: Combine, chunk: int, length: int) -> None:
    """Reduce all chunks at once, for payloads so small that calls cost more than bytes.

    The rows of all ranks are written twice, one set below the other. Hop h then adds row P + c - h to chunk c. For
    every h this is a view whose rows are one row and one chunk apart.
    """
    ranks = len(tensors)
    used = -(-length // chunk)
    width = used * chunk
    if width == length:
        rows = torch.stack([*tensors, *tensors])
    else:
        rows = torch.zeros(2 * ranks, width, dtype=tensors[0].dtype)
        once = torch.stack(list(tensors))
        rows[:ranks, :length] = once
        rows[ranks:, :length] = once
    ufunc = None
    if ranks >= _MANY and rows.numel() <= _ACCUMULATED and rows.dtype is not torch.bfloat16:
        ufunc = _UFUNCS.get(reduction)
    if ufunc is not None:
        # `accumulate` is a left fold by definition; `reduce` would add in pairs.
        array = rows.numpy()
        size = array.itemsize
        hops: Any = np.ndarray(
            (ranks, used, chunk),
            array.dtype,
            array,
            offset=(ranks - 1) * width * size,
            strides=(-width * size, (width + chunk) * size, size),
        )
        with np.errstate(all="ignore"):
            total = torch.from_numpy(ufunc.accumulate(hops, axis=0)[-1].reshape(-1))[:length]
    else:
        strides = (width + chunk, 1)
        running = rows.as_strided((used, chunk), strides, (ranks - 1) * width).clone()
        for hop in range(2, ranks + 1):
            function(rows.as_strided((used, chunk), strides, (ranks - hop) * width), running, running)
        total = running.view(-1)[:length]
    copy_into_each(list(tensors), [total] * ranks)


def _block(views: Sequence[Tensor], function: Combine, owner: int) -> None:
    # Use the memory of the rank at which the chunk starts: its old content is needed only there, and only now.
    ranks = len(views)
    first = (owner - 1) % ranks
    running = views[first]
    for hop in range(2, ranks + 1):
        function(views[(owner - hop) % ranks], running, running)
    copy_into_each([view for rank, view in enumerate(views) if rank != first], [running] * (ranks - 1))


def reduce(tensors: Sequence[Tensor], reduction: str, root: int, *, paired: bool = False) -> None:
    """Reduce flat `tensors` to group rank `root`; the others keep the partial results that Gloo leaves there.

    `paired`: as for `all_reduce`.
    """
    ranks = len(tensors)
    length = tensors[0].numel()
    if ranks > 1 and length:
        element = tensors[0].element_size()
        _, per_rank, segment = reduce_segments(length * element, element, ranks)
        cut = per_rank, segment // element
        kind = "sum" if reduction == "avg" else reduction
        done = partial_ring(kind, tensors, root, chunk=cut[0] * cut[1])
        rest = list(tensors)
        if 0 < done < length:
            rest = [tensor.clone() for tensor in tensors]
        if done < length:
            _reduce(rest, reduction, root, cut)
        if done:
            _overrun(tensors, combine(reduction, tensors[0].dtype), root, cut, done)
            for tensor, other in zip(tensors, rest, strict=True):
                if other is not tensor:
                    tensor[done:] = other[done:]
    if reduction == "avg":
        divide(tensors, paired, ranks)


def _reduce(tensors: Sequence[Tensor], reduction: str, root: int, cut: tuple[int, int]) -> None:
    """Reduce with torch. `cut`: how many segments a rank owns, and how many elements a segment has."""
    ranks = len(tensors)
    length = tensors[0].numel()
    function = combine(reduction, tensors[0].dtype)
    chunk = cut[0] * cut[1]
    totals: list[Tensor] = []
    for owner, start in enumerate(range(0, length, chunk)):
        part = slice(start, min(start + chunk, length))
        running = tensors[owner - 1][part].clone()
        for hop in range(2, ranks + 1):
            rank = (owner - hop) % ranks
            function(tensors[rank][part], running, running)
            if rank != root:
                tensors[rank][part] = running
        totals.append(running)
    # The root's own operands have been read by now.
    for owner, start in enumerate(range(0, length, chunk)):
        tensors[root][start : start + chunk] = totals[owner]
    _overrun(tensors, function, root, cut, length)


def leave_reduce(
    tensor: Tensor, inputs: Mapping[int, Tensor], reduction: str, rank: int, ranks: int, *, paired: bool = False
) -> None:
    """Fill `tensor` of a rank that owns no chunk of a reduce and is done before all ranks have arrived.

    `inputs` are the flat tensors of the ranks that have arrived, as they were then; the one that `rank` hears from is
    among them.
    """
    length = tensor.numel()
    element = tensor.element_size()
    function = combine(reduction, tensor.dtype)
    _, per_rank, segment = reduce_segments(length * element, element, ranks)
    chunk = per_rank * segment // element
    for owner, start in enumerate(range(0, length, chunk)):
        hops = (owner - 1 - rank) % ranks  # 0: the chunk starts here, and stays as it is
        part = slice(start, start + chunk)
        running = inputs[(owner - 1) % ranks][part].clone()
        for hop in range(2, hops + 2):
            function(inputs[(owner - hop) % ranks][part], running, running)
        tensor[part] = running
    if reduction == "avg":
        divide([tensor], paired, ranks)


def _overrun(tensors: Sequence[Tensor], function: Combine, root: int, cut: tuple[int, int], end: int) -> None:
    """Repeat Gloo's mistake on the elements before `end`; the root has the totals."""
    # With more than two segments per rank, Gloo's loop runs on into the chunk after its own (gloo/reduce.cc).
    ranks = len(tensors)
    per_rank, segment = cut
    length, chunk = (per_rank - 2) * segment, per_rank * segment
    if length <= 0:
        return
    for owner, start in enumerate(range(0, end, chunk)):
        rank = (owner - 1) % ranks  # at which the chunk started, and stayed as it was
        if rank != root:
            part = slice(start, min(start + length, end))
            target = tensors[rank][part]
            function(target.clone(), tensors[root][part], target)
