"""What comes out of a collective, bit for bit as Gloo computes it.

A reduction's chunk c starts raw at rank c-1 and goes down the ring, each rank putting its own operand first:
`x_c + (x_{c+1} + (... + (x_{c-2} + x_{c-1})))`, rounded to the tensor's type at each hop. The chunks are those of
Gloo's segment arithmetic. `max` and `min` keep the local operand unless the received one is strictly better, so a NaN
that is held stays and a NaN that is received is dropped. Average is the sum, then one true division.

The work is done in blocks small enough that every input is read once, and every output written once, while the block
is in the cache; there is no copy of a whole payload.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from simdist.cluster import reduce_segments, segments

__all__ = [
    "all_reduce",
    "as_bytes",
    "checksum",
    "combine",
    "divide",
    "flat",
    "is_dense",
    "leave_reduce",
    "reduce",
    "whole_payloads",
]

Tensor = torch.Tensor
Combine = Callable[[Tensor, Tensor, Tensor], None]

# True once a tensor of inference mode was given to an operation. From then on all data moves in that mode, in which any
# tensor may be written; entering it costs more than moving a few bytes does, and hardly any program needs it.
inference_tensors = False

_SHEARED_BYTES = 16 << 10  # times ranks; above, the call overhead of one step per chunk and rank no longer matters
_ACCUMULATED = 1 << 14  # elements up to which numpy's fold, with all its partial results, is the cheapest
_WINDOWS = 8  # of a large tensor that is sampled
_MANY = 16  # ranks from which numpy's overhead per call pays
_UFUNCS: dict[str, Any] = {"sum": np.add, "avg": np.add, "product": np.multiply}
_CACHE_BYTES = 1 << 21  # what the blocks of all ranks may take together
_INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)


def flat(tensor: Tensor) -> Tensor:
    """The tensor's elements in memory order as one dimension, sharing its memory; complex ones as pairs of reals.

    Autograd does not see what is done to the result, as it does not see what Gloo does to the memory.
    """
    global inference_tensors
    tensor = tensor.data
    if tensor.is_inference():
        inference_tensors = True
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8)
    if tensor.stride() == (1,):  # not `is_contiguous`: of one element any stride is, but only this one views as bytes
        return tensor
    return tensor.as_strided((tensor.numel(),), (1,))


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor as one dimension of bytes, shared."""
    data = flat(tensor)
    return data if data.dtype is torch.uint8 else data.view(torch.uint8)


def is_dense(tensor: Tensor) -> bool:
    """True if the elements of a tensor fill one stretch of memory, in whichever order."""
    if tensor.is_contiguous():
        return True
    extent = 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()


def combine(name: str, dtype: torch.dtype) -> Combine:
    """The function `(local, received, out)` of a reduce operation; `out` may be `received`."""
    if name in ("max", "min"):
        if dtype in _INTEGERS:
            return _maximum if name == "max" else _minimum
        return _max_keeping_local if name == "max" else _min_keeping_local
    return _COMBINE[name]


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


def all_reduce(tensors: Sequence[Tensor], operation: str, *, paired: bool = False) -> None:
    """Reduce flat `tensors`, one per group rank, in place on all of them.

    `paired`: the elements are the parts of complex numbers, and an average divides as complex numbers do.
    """
    ranks = len(tensors)
    length = tensors[0].numel()
    if length == 0:
        return
    if ranks > 1:
        function = combine(operation, tensors[0].dtype)
        element = tensors[0].element_size()
        _, per_rank, segment = segments(length * element, element, ranks)
        chunk = per_rank * segment // element
        if length <= chunk and ranks < _MANY:
            running = tensors[-1].clone()  # one chunk, that of rank 0
            for hop in range(2, ranks + 1):
                function(tensors[-hop], running, running)
            for tensor in tensors:
                tensor.copy_(running)
        elif length * element <= ranks * _SHEARED_BYTES:
            _sheared(tensors, operation, function, chunk, length)
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
    if operation == "avg":
        divide(tensors, paired, ranks)


def divide(tensors: Sequence[Tensor], paired: bool, ranks: int) -> None:
    """Divide sums by the number of ranks; `paired` elements are the parts of complex numbers."""
    # Torch's division of a complex number by a real one does not round as that of its parts.
    for tensor in tensors:
        whole = torch.view_as_complex(tensor.view(-1, 2)) if paired else tensor
        whole.div_(ranks)


def _sheared(tensors: Sequence[Tensor], operation: str, function: Combine, chunk: int, length: int) -> None:
    """All chunks at once, for payloads so small that calls cost more than bytes.

    With every rank's row written twice below each other, what hop h adds to chunk c stands at row P + c - h: a view
    whose rows are one row and one chunk apart, no matter which h.
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
        ufunc = _UFUNCS.get(operation)
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
    torch._foreach_copy_(list(tensors), [total] * ranks)


def _block(views: Sequence[Tensor], function: Combine, owner: int) -> None:
    # In the memory of the rank at which the chunk starts: what it held is only needed there, and only now.
    ranks = len(views)
    first = (owner - 1) % ranks
    running = views[first]
    for hop in range(2, ranks + 1):
        function(views[(owner - hop) % ranks], running, running)
    torch._foreach_copy_([view for rank, view in enumerate(views) if rank != first], [running] * (ranks - 1))


def reduce(tensors: Sequence[Tensor], operation: str, root: int, *, paired: bool = False) -> None:
    """Reduce flat `tensors` to group rank `root`; the others keep the partial results that Gloo leaves with them.

    `paired`: as for `all_reduce`.
    """
    ranks = len(tensors)
    length = tensors[0].numel()
    if ranks > 1 and length:
        function = combine(operation, tensors[0].dtype)
        element = tensors[0].element_size()
        _, per_rank, segment = reduce_segments(length * element, element, ranks)
        chunk = per_rank * segment // element
        segment //= element
        raw_next = {}
        totals: list[Tensor | None] = [None] * ranks
        for owner, start in enumerate(range(0, length, chunk)):
            part = slice(start, min(start + chunk, length))
            running = tensors[owner - 1][part].clone()
            raw_next[(owner - 1) % ranks] = part
            for hop in range(2, ranks + 1):
                rank = (owner - hop) % ranks
                function(tensors[rank][part], running, running)
                if rank != root:
                    tensors[rank][part] = running
            totals[owner] = running
        if per_rank > 2:
            _overrun(tensors, function, raw_next, totals, root, (per_rank - 2) * segment)
        for owner, start in enumerate(range(0, length, chunk)):
            total = totals[owner]
            assert total is not None
            tensors[root][start : start + chunk] = total
    if operation == "avg":
        divide(tensors, paired, ranks)


def leave_reduce(
    tensor: Tensor, inputs: Mapping[int, Tensor], operation: str, rank: int, ranks: int, *, paired: bool = False
) -> None:
    """Put into `tensor` what a reduce leaves with a rank that owns no chunk and is done before all ranks have come.

    `inputs` are the flat tensors of those that have, as they came; whoever `rank` hears from is among them.
    """
    length = tensor.numel()
    element = tensor.element_size()
    function = combine(operation, tensor.dtype)
    _, per_rank, segment = reduce_segments(length * element, element, ranks)
    chunk = per_rank * segment // element
    for owner, start in enumerate(range(0, length, chunk)):
        hops = (owner - 1 - rank) % ranks  # 0: the chunk starts here, and stays as it is
        part = slice(start, start + chunk)
        running = inputs[(owner - 1) % ranks][part].clone()
        for hop in range(2, hops + 2):
            function(inputs[(owner - hop) % ranks][part], running, running)
        tensor[part] = running
    if operation == "avg":
        divide([tensor], paired, ranks)


def _overrun(
    tensors: Sequence[Tensor],
    function: Combine,
    raw_next: dict[int, slice],
    totals: Sequence[Tensor | None],
    root: int,
    length: int,
) -> None:
    # With more than two segments per rank Gloo's loop runs on into the chunk after its own (gloo/reduce.cc).
    ranks = len(tensors)
    for rank, part in raw_next.items():
        total = totals[(rank + 1) % ranks]
        if rank == root or total is None:
            continue
        size = min(length, total.numel())
        target = tensors[rank][part.start : part.start + size]
        function(target.clone(), total[:size], target)


_hand_over: Callable[[int], None] | None = None


@contextmanager
def whole_payloads(take: Callable[[int], None]) -> Iterator[None]:
    """Inside, every checksum that is a sample is also computed over everything, and handed to `take`."""
    global _hand_over
    before, _hand_over = _hand_over, take
    try:
        yield
    finally:
        _hand_over = before


def checksum(tensors: Sequence[Tensor], limit: int) -> int:
    """CRC-32 over the bytes of flat `tensors`; above `limit` bytes, over windows spread over all of them."""
    crc = 0
    whole = 0
    for tensor in tensors:
        data = tensor.detach()
        if data.numel() == 0:
            continue
        if not data.is_contiguous():
            data = data.contiguous()
        view = as_bytes(data).numpy().data
        size = len(view)
        if size <= limit:
            crc = zlib.crc32(view, crc)
        else:
            if _hand_over is not None:
                whole = zlib.crc32(view, whole)
            width = limit // _WINDOWS
            for index in range(_WINDOWS):
                begin = (size - width) * index // (_WINDOWS - 1)
                crc = zlib.crc32(view[begin : begin + width], crc)
    if _hand_over is not None and whole:
        _hand_over(whole)
    return crc
