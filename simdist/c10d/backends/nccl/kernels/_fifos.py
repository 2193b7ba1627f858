"""The buffers between two ranks' kernels, and how a kernel moves one chunk through them (NCCL 2.29.7, src/device).

A kernel that receives knows only its own call: how many bytes it will take, of which type, in how many steps. It waits
until the sender has posted as many steps and takes what lies there; in the protocols LL and LL128 until the flag of
each line that it will take is that of its step. So ranks whose calls do not fit get stuck, or go on with what happens
to lie in a buffer. Calls that fit need none of this: `_folds.py` has what comes out of them.

A kernel is a generator that yields where it would spin. `settle` lets some run as far as they come.

In doubt: a buffer is empty at first, where a real one has what passed through it before; of a line that was written
in part, the rest is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from simdist.c10d.surface._memory import as_bytes

__all__ = ["Arithmetic", "Kernel", "Protocol", "Turn", "Wire", "ll", "ll128", "move", "settle", "simple"]

Tensor = torch.Tensor
Kernel = Iterator[None]
_STEPS = 8  # of a buffer: a sender is no further ahead
_LL_LINE = 8  # bytes of data, beside as many of flags
_LL128_LINES = 1920  # bytes of data that a warp writes and waits for at once
_ALIGNED = 16  # elements
_ENDED = object()
_Place = TypeVar("_Place")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How chunks go: so many bytes of data at most, in slices of some steps each; `line` bytes share a flag, or 0.

    A network's card has room for `step_bytes` times the steps of a slice, and no more.
    """

    name: str
    chunk_bytes: int
    step_bytes: int
    slices: int = 1
    steps: int = 1  # of a slice
    line: int = 0


def simple(step_bytes: int, slices: int = 1, steps: int = 1) -> Protocol:
    """Chunks of whole steps, with one flag for each slice."""
    return Protocol("simple", step_bytes * slices * steps, step_bytes, slices, steps)


def ll(chunk_bytes: int) -> Protocol:
    """Every eight bytes with a flag of their own."""
    return Protocol("ll", chunk_bytes, chunk_bytes * 2, line=_LL_LINE)


def ll128(chunk_bytes: int) -> Protocol:
    """Lines of 128 bytes, 120 of them data."""
    return Protocol("ll128", chunk_bytes, chunk_bytes // 15 * 16, line=_LL128_LINES)


class Wire:
    """What goes from one rank to another: steps that were posted and taken, and what lies in the buffer."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.sent = self.taken = 0
        self.message_bytes = 0  # the first that nobody has taken yet
        self._memory: Tensor | None = None
        self._lines: dict[int, Tensor] = {}  # by step

    @property
    def is_even(self) -> bool:
        """True if all that was sent has been taken."""
        return self.sent == self.taken and not self._lines

    def put(self, data: Tensor, steps: int) -> None:
        """Post some steps, with what a kernel writes into them."""
        raw = as_bytes(data.contiguous())
        if self.sent == self.taken:
            self.message_bytes = len(raw)
        if self.protocol.line:
            if self.sent >= self.taken:  # else it was taken for empty
                self._lines[self.sent] = raw.clone()
        elif len(raw):
            self._at(self.sent, len(raw)).copy_(raw)
        self.sent += steps

    def put_part(self, data: Tensor) -> None:
        """Write lines into a step that is not posted: no more will come."""
        self._lines[self.sent] = as_bytes(data.contiguous()).clone()

    def has_lines(self) -> bool:
        """True if somebody has written into the step that is next."""
        return self.taken in self._lines

    def lines(self) -> int:
        """How many there are, in the step that is next."""
        return -(-len(self._lines[self.taken]) // self.protocol.line)

    def look(self, length: int) -> Tensor:
        """So many bytes of the step that is next."""
        found = torch.zeros(length, dtype=torch.uint8)
        if self.protocol.line:
            raw = self._lines[self.taken][:length]
            found[: len(raw)] = raw
        elif length:
            found.copy_(self._at(self.taken, length))
        return found

    def take(self, steps: int) -> None:
        """Free some steps."""
        self._lines.pop(self.taken, None)
        self.taken += steps

    def _at(self, step: int, length: int) -> Tensor:
        size = self.protocol.step_bytes
        if self._memory is None:
            self._memory = torch.zeros(2 * _STEPS * size, dtype=torch.uint8)  # a slice may begin in its last step
        first = step % _STEPS * size
        return self._memory[first : first + length]


@dataclass(slots=True)
class Turn:
    """What a kernel does with a chunk of `length` elements: receive it, add `source`, put it into `target`, send it."""

    length: int
    receives: Sequence[Wire] = ()
    sends: Sequence[Wire] = ()
    source: Tensor | None = None
    target: Tensor | None = None
    is_total: bool = False  # it has what all ranks have put in


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a rank's call makes of numbers: their type, how two are combined, and what becomes of a total."""

    dtype: torch.dtype
    combine: Callable[[Tensor, Tensor], Tensor]
    finish: Callable[[Tensor], Tensor]

    def result(self, turn: Turn, count: int, begin: int = 0) -> Tensor:
        """So many elements as a turn leaves them, from one on, with what lies in the next step of its wires."""
        data = None if turn.source is None else turn.source[begin : begin + count]
        for wire in turn.receives:
            received = wire.look(count * self.dtype.itemsize).view(self.dtype)
            data = received if data is None else self.combine(data, received)
        assert data is not None
        return self.finish(data) if turn.is_total else data


def move(protocol: Protocol, turn: Turn, arithmetic: Arithmetic) -> Kernel:
    """Take one turn."""
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
    if wanted:  # who wants nothing waits for nobody
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
    """Run kernels, those of a rank side by side, until nothing moves any more; the ranks of which none is stuck."""
    running = {rank: list(each) for rank, each in kernels.items()}
    before = None
    while before != (now := [(wire.sent, wire.taken, wire.has_lines()) for wire in wires.values()]):
        before = now
        for rank, each in running.items():
            running[rank] = [kernel for kernel in each if next(kernel, _ENDED) is not _ENDED]
    return [rank for rank, each in running.items() if not each]
