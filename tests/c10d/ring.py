"""A slow copy of Gloo's reductions: every segment is copied from rank to rank as in the message schedule.

Written from the description of gloo/allreduce.cc and reduce.cc, not from simdist: plain numpy, no folds, no blocks.
Numpy has no bfloat16, so it is stored as the upper half of a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["all_reduce", "as_array", "reduce", "same_bits"]

Array = np.ndarray[Any, np.dtype[Any]]
Fold = Callable[[Array, Array], Array]  # (local, received)

MIB = 1 << 20


def as_array(tensor: torch.Tensor) -> tuple[Array, bool]:
    """Return the elements in memory order, complex ones as pairs, and True if they are bfloat16 bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.reshape(-1)
    if tensor.dtype is torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16).copy(), True
    if tensor.dtype is torch.bool:
        return flat.view(torch.uint8).numpy().copy(), False
    return flat.numpy().copy(), False


def _widen(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _narrow(wide: Array) -> Array:
    bits = wide.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, rounded).astype(np.uint16)


def _fold(name: str, brain: bool) -> Fold:
    plain: dict[str, Fold] = {
        "sum": np.add,
        "avg": np.add,
        "product": np.multiply,
        "max": lambda local, received: np.where(local < received, received, local),
        "min": lambda local, received: np.where(received < local, received, local),
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    function = plain[name]
    if not brain:
        return lambda local, received: function(local, received).astype(local.dtype)
    return lambda local, received: _narrow(function(_widen(local), _widen(received)))


def _divide(values: Array, ranks: int, brain: bool) -> Array:
    if brain:
        return _narrow(_widen(values) / np.float32(ranks))
    quotients: Array = values / values.dtype.type(ranks)
    return quotients.astype(values.dtype)


class _Ring:
    """Buffers of all ranks, cut in segments, and one phase of the ring over them."""

    def __init__(self, buffers: Sequence[Array], total: int, segment_bytes: int) -> None:
        self.buffers = buffers
        self.ranks = len(buffers)
        self.total = total
        self.per_rank = total // self.ranks
        self.segment = segment_bytes // buffers[0].itemsize

    def part(self, index: int) -> slice:
        start = (index % self.total) * self.segment
        return slice(start, start + self.segment)

    def run(self, steps: int, shift: int, arrived: Callable[[int, slice, Array], None]) -> None:
        """In step i let rank r receive segment (r + shift) * per_rank + i from r + 1; it is used two steps later."""
        flying: dict[tuple[int, int], tuple[slice, Array]] = {}
        for step in range(steps + 2):
            for rank in range(self.ranks):
                if (rank, step - 2) in flying:
                    arrived(rank, *flying.pop((rank, step - 2)))
            if step < steps:
                for rank in range(self.ranks):
                    part = self.part((rank + shift) * self.per_rank + step)
                    flying[rank, step] = part, self.buffers[(rank + 1) % self.ranks][part].copy()


def _up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def all_reduce(buffers: Sequence[Array], name: str, brain: bool) -> None:
    """Reduce in place on every rank."""
    ranks, element = len(buffers), buffers[0].itemsize
    size = buffers[0].size * element
    if size and ranks > 1:
        total = _up(max((size + MIB - 1) // (MIB // element * element), 2 * ranks), ranks)
        ring = _Ring(buffers, total, _up((size + total - 1) // total, element))
        _reduce_phase(ring, _fold(name, brain), total - total // ranks)

        def copy(rank: int, part: slice, received: Array) -> None:
            buffers[rank][part] = received

        ring.run(total - total // ranks, 1, copy)
    if name == "avg":
        for buffer in buffers:
            buffer[:] = _divide(buffer, ranks, brain)


def reduce(buffers: Sequence[Array], name: str, brain: bool, root: int) -> None:
    """Reduce to a root; the other ranks keep what the ring leaves in their buffers."""
    ranks, element = len(buffers), buffers[0].itemsize
    size = buffers[0].size * element
    if size and ranks > 1:
        segment = _up(min((size + 2 * ranks - 1) // (2 * ranks), MIB // element * element), element)
        total = _up(max((size + segment - 1) // segment, 2 * ranks), ranks)
        ring = _Ring(buffers, total, segment)
        _reduce_phase(ring, _fold(name, brain), total - 2)
        chunk = ring.per_rank * ring.segment
        for rank in range(ranks):
            if rank != root:
                part = slice(rank * chunk, (rank + 1) * chunk)
                buffers[root][part] = buffers[rank][part]
    if name == "avg":
        for buffer in buffers:
            buffer[:] = _divide(buffer, ranks, brain)


def _reduce_phase(ring: _Ring, fold: Fold, steps: int) -> None:
    def add(rank: int, part: slice, received: Array) -> None:
        buffer = ring.buffers[rank]
        buffer[part] = fold(buffer[part], received)

    with np.errstate(all="ignore"):
        ring.run(steps, 2, add)


def same_bits(tensor: torch.Tensor, expected: Array, brain: bool) -> bool:
    """True if every element has the expected bits; all NaNs count as equal."""
    actual, _ = as_array(tensor)
    if brain:
        nans = np.isnan(_widen(actual)), np.isnan(_widen(expected))
    elif actual.dtype.kind == "f":
        nans = np.isnan(actual), np.isnan(expected)
    else:
        return bool((actual == expected).all())
    bits = f"u{actual.itemsize}"
    different = (actual.view(bits) != expected.view(bits)) & ~(nans[0] & nans[1])
    return not different.any()
