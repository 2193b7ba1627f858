"""The bytes of a collective that is followed message by message.

When ranks disagree, or one is missing, Gloo still moves what it can: a shorter message fills part of a buffer, segments
land where the receiver expects another, a rank that times out keeps half of a sum. A `Movement` repeats that on copies
of the tensors, in the order that the flow finds, so that every rank's tensor ends up as Gloo leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simdist.c10d.engine._program import Program
from simdist.c10d.surface import _memory

__all__ = ["LARGEST", "SMALL", "Moved", "Movement", "Notes"]

# Up to this many bytes of all ranks' tensors together they are followed, which takes two more copies of each.
# Larger ones keep what they held when the operation fails.
LARGEST = 1 << 28
SMALL = 1 << 20  # up to this many bytes of one tensor following costs little, even if nothing seems wrong

Tensor = torch.Tensor
Combine = Callable[[str, torch.dtype], Callable[[Tensor, Tensor, Tensor], None]]
Moved = tuple[Callable[..., None], tuple[Any, ...]]  # a move that is noted, and made later


class _Side:
    """One rank: a copy of its tensor, the places of its sends and receives in it, and its other send buffer, if any."""

    __slots__ = ("buffer", "outgoing", "receives", "reduction", "scratch", "sends")

    def __init__(self, tensor: Tensor, program: Program, reduction: str, outgoing: Tensor | None) -> None:
        self.buffer = tensor.clone()
        self.outgoing = outgoing
        self.reduction = reduction
        self.sends = [(step[2], step[3]) for step in program if step[0] == "send"]  # (bytes, offset)
        self.receives = [(step[2], step[3], step[4]) for step in program if step[0] == "recv"]  # and: reduced or placed
        self.scratch: dict[int, Tensor] = {}  # data that has arrived and waits to be reduced, by receive

    def bytes(self) -> Tensor:
        """The buffer as bytes."""
        return _memory.as_bytes(self.buffer)


class Movement:
    """The copies of all ranks that have arrived. `combine` returns the function of a reduction: see `Algorithm`.

    A move is noted, and made when a result is needed: a flow that is built anew before that moves no bytes.
    """

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._entered: dict[int, None] = {}  # the ranks that take part
        self._to_do: list[Moved] = []  # in this order
        self._sides: dict[int, _Side] = {}  # of the ranks that take part, as far as the moves have been made

    def enter(
        self, rank: int, tensor: Tensor, program: Program, reduction: str, outgoing: Tensor | None = None
    ) -> None:
        """Let a rank take part with the flat `tensor`, and send from it or from the bytes `outgoing`.

        Neither of them may change from now on.
        """
        self._entered[rank] = None
        self._to_do.append((Movement._enter, (rank, tensor, program, reduction, outgoing)))

    def move(self, source: int, send: int, target: int, receive: int) -> None:
        """Match the n-th send of a rank with the m-th receive of another; moves no more bytes than both expect."""
        if source in self._entered and target in self._entered:
            self._to_do.append((Movement._move, (source, send, target, receive)))

    def received(self, rank: int, receive: int) -> None:
        """Reduce the data of a receive into the rank's buffer: the rank has waited for it."""
        if rank in self._entered:
            self._to_do.append((Movement._reduce, (rank, receive)))

    def take(self, moved: list[Moved]) -> None:
        """Take over the moves in the `Notes` of the same operation."""
        self._to_do += moved

    def follows(self, rank: int) -> bool:
        """True if the rank's tensor is among the copies."""
        return rank in self._entered

    def result(self, rank: int) -> Tensor:
        """The rank's tensor as it is now."""
        steps, self._to_do = self._to_do, []
        for do, operands in steps:
            do(self, *operands)
        return self._sides[rank].buffer

    def _enter(self, rank: int, tensor: Tensor, program: Program, reduction: str, outgoing: Tensor | None) -> None:
        self._sides[rank] = _Side(tensor, program, reduction, outgoing)

    def _move(self, source: int, send: int, target: int, receive: int) -> None:
        ours, theirs = self._sides[source], self._sides[target]
        size, begin = ours.sends[send]
        room, place, reduced = theirs.receives[receive]
        size = min(size, room)
        data = (ours.bytes() if ours.outgoing is None else ours.outgoing)[begin : begin + size]
        if reduced:
            theirs.scratch[receive] = data.clone()
        else:
            theirs.bytes()[place : place + size] = data

    def _reduce(self, rank: int, receive: int) -> None:
        side = self._sides[rank]
        data = side.scratch.pop(receive, None)
        if data is None:
            return
        element = side.buffer.element_size()
        came = data[: len(data) // element * element].view(side.buffer.dtype)
        first = side.receives[receive][1] // element
        local = side.buffer[first : first + len(came)]
        self._combine(side.reduction, side.buffer.dtype)(local, came, came)
        local.copy_(came)


class Notes:
    """Stands in for a movement, and notes the moves for it."""

    def __init__(self) -> None:
        self.moved: list[Moved] = []  # in this order

    def move(self, source: int, send: int, target: int, receive: int) -> None:
        """Note a `Movement.move`."""
        self.moved.append((Movement._move, (source, send, target, receive)))

    def received(self, rank: int, receive: int) -> None:
        """Note a `Movement.received`."""
        self.moved.append((Movement._reduce, (rank, receive)))
