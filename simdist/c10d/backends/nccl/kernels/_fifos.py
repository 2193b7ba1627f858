"""The buffers between two ranks' kernels, and how a kernel moves one chunk through them (NCCL 2.29.7, src/device).

A kernel that receives knows only its own call: how many bytes it will take, of which type, in how many steps. It waits
until the sender has posted that many steps, and takes the bytes in the buffer. In the protocols LL and LL128 it waits
until each line that it will take has the flag of its step. So ranks whose calls do not match get stuck, or go on with
whatever is in a buffer. Calls that match do not need this module: `_folds.py` has their results.

A kernel is a generator that yields where it would spin. `settle` runs kernels until none can go on.

In doubt: a buffer is empty at first, while a real one has the data of earlier calls; the rest of a partly written line
is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from simdist.c10d.surface._memory import as_bytes

__all__ = ["Arithmetic", "Kernel", "Protocol", "Turn", "Wire", "ll", "ll128", "move", "settle", "simple"]

Tensor = torch.Tensor
Kernel = Iterator[None]
_STEPS = 8  # of a buffer: the most that a sender can be ahead
_LL_LINE = 8  # bytes of data, followed by 8 bytes of flags
_LL128_LINES = 1920  # bytes of data that a warp writes and waits for at once
_ALIGNED = 16  # elements
_ENDED = object()
_Place = TypeVar("_Place")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How chunks are moved: at most `chunk_bytes` of data, in slices of some steps each.

    `line` bytes share a flag; 0: no flags in the data. A network card has room for `step_bytes` times the steps of a
    slice.
    """

    name: str
    chunk_bytes: int
    step_bytes: int
    slices: int = 1
    steps: int = 1  # of a slice
    line: int = 0


def simple(step_bytes: int, slices: int = 1, steps: int = 1) -> Protocol:
    """Return the protocol Simple: chunks of whole steps, with one flag for each slice."""
    return Protocol("simple", step_bytes * slices * steps, step_bytes, slices, steps)


def ll(chunk_bytes: int) -> Protocol:
    """Return the protocol LL: every eight bytes have their own flag."""
    return Protocol("ll", chunk_bytes, chunk_bytes * 2, line=_LL_LINE)


def ll128(chunk_bytes: int) -> Protocol:
    """Return the protocol LL128: lines of 128 bytes, 120 of them data."""
    return Protocol("ll128", chunk_bytes, chunk_bytes // 15 * 16, line=_LL128_LINES)


class Wire:
    """The buffer from one rank to another: its content, and the numbers of posted and taken steps."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.sent = self.taken = 0
        self.message_bytes = 0  # size of the first message that is not taken yet
        self._memory: Tensor | None = None
        self._lines: dict[int, Tensor] = {}  # by step

    @property
    def is_even(self) -> bool:
        """True if all posted steps have been taken."""
        return self.sent == self.taken and not self._lines

    def put(self, data: Tensor, steps: int) -> None:
        """Post some steps, with the data that a kernel writes into them."""
        raw = as_bytes(data.contiguous())
        if self.sent == self.taken:
            self.message_bytes = len(raw)
        if self.protocol.line:
            if self.sent >= self.taken:  # else the receiver took this step as empty
                self._lines[self.sent] = raw.clone()
        elif len(raw):
            self._at(self.sent, len(raw)).copy_(raw)
        self.sent += steps

    def put_part(self, data: Tensor) -> None:
        """Write lines into a step that will never be posted."""
        self._lines[self.sent] = as_bytes(data.contiguous()).clone()

    def has_lines(self) -> bool:
        """True if the next step to be taken has lines."""
        return self.taken in self._lines

    def lines(self) -> int:
        """Return how many lines the next step has."""
        return -(-len(self._lines[self.taken]) // self.protocol.line)

    def look(self, length: int) -> Tensor:
        """Return the first `length` bytes of the next step."""
        found = torch.zeros(length, dtype=torch.uint8)
        if self.protocol.line:
            raw = self._lines[self.taken][:length]
            found[: len(raw)] = raw
        elif length:
            found.copy_(self._at(self.taken, length))
        return found

    def take(self, steps: int) -> None:
        """Take some steps, which frees them."""
        self._lines.pop(self.taken, None)
        self.taken += steps

    def _at(self, step: int, length: int) -> Tensor:
        size = self.protocol.step_bytes
        if self._memory is None:
            # A slice may begin in its last step. NumPy lets the system zero pages on first use; most are never used.
            self._memory = torch.from_numpy(np.zeros(2 * _STEPS * size, dtype=np.uint8))
        first = step % _STEPS * size
        return self._memory[first : first + length]


@dataclass(slots=True)
class Turn:
    """A kernel's work on a chunk of `length` elements: receive it, add `source`, put it into `target`, send it."""

    length: int
    receives: Sequence[Wire] = ()
    sends: Sequence[Wire] = ()
    source: Tensor | None = None
    target: Tensor | None = None
    is_total: bool = False  # the result combines the inputs of all ranks


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The arithmetic of a rank's call: the type, how two numbers are combined, and how a total is finished."""

    dtype: torch.dtype
    combine: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[Tensor], Tensor]

    def result(self, turn: Turn, count: int, begin: int = 0) -> Tensor:
        """Return `count` elements of a turn's result, from `begin` on; it uses the next step of the turn's wires."""
        data = None if turn.source is None else turn.source[begin : begin + count]
        for wire in turn.receives:
            received = wire.look(count * self.dtype.itemsize).view(self.dtype)
            data = received if data is None else self.combine(data, received)
        assert data is not None
        return self.finish(data) if turn.is_total else data


def move(protocol: Protocol, turn: Turn, arithmetic: Arithmetic) -> Kernel:
    """Return a kernel that does one turn."""
    return (_move_lines if protocol.line else _move_slices)(protocol, turn, arithmetic)


def _move_slices(protocol: Protocol, turn: Turn, arithmetic: Arithmetic) -> Kernel:
    steps = protocol.steps
    least = protocol.step_bytes * steps // arithmetic.dtype.itemsize // 32
    size = max(-(-turn.length // (_ALIGNED * protocol.slices)) * _ALIGNED, least)
    begin = 0
    for _ in range(protocol.slices):
        count = min(size, turn.length - begin)
        while any(wire.sent < wire.taken + steps for wire in turn.receives) or any(
            wire.taken + _STEPS < wire.sent + steps for wire in turn.sends
        ):
            yield
        data = arithmetic.result(turn, count, begin)
        for wire in turn.receives:
            wire.take(steps)
        for wire in turn.sends:
            wire.put(data, steps)
        if turn.target is not None:
            turn.target[begin : begin + count].copy_(data)
        begin += count


def _move_lines(protocol: Protocol, turn: Turn, arithmetic: Arithmetic) -> Kernel:
    element = arithmetic.dtype.itemsize
    while any(wire.taken + _STEPS <= wire.sent for wire in turn.sends):
        yield
    wanted = -(-turn.length * element // protocol.line)
    data = torch.empty(0, dtype=arithmetic.dtype)
    come = 0
    if wanted:  # a kernel that wants nothing does not wait
        while not all(wire.has_lines() for wire in turn.receives):
            yield
        come = min((wire.lines() for wire in turn.receives), default=wanted)
        count = min(turn.length, min(come, wanted) * protocol.line // element)
        data = arithmetic.result(turn, count)
        if turn.target is not None:
            turn.target[:count].copy_(data)
    if come < wanted:
        for wire in turn.sends:
            wire.put_part(data)
        while True:
            yield
    for wire in turn.receives:
        wire.take(1)
    for wire in turn.sends:
        wire.put(data, 1)


def settle(kernels: Mapping[int, Sequence[Kernel]], wires: Mapping[_Place, Wire]) -> list[int]:
    """Run kernels, those of a rank concurrently, until nothing moves; return the ranks without a stuck kernel."""
    running = {rank: list(each) for rank, each in kernels.items()}
    before = None
    while before != (now := [(wire.sent, wire.taken, wire.has_lines()) for wire in wires.values()]):
        before = now
        for rank, each in running.items():
            running[rank] = [kernel for kernel in each if next(kernel, _ENDED) is not _ENDED]
    return [rank for rank, each in running.items() if not each]
