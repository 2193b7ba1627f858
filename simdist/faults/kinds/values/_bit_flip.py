"""`BitFlip`: silent data corruption on the way into an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from simdist.c10d.calls import SILENT
from simdist.faults._bits import flip, size_of
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION
from simdist.faults._in_place import problems_in_place
from simdist.faults._operations import ALIASES, OPERATIONS, operations_of
from simdist.faults._rank_fault import Payload, RankFault
from simdist.values import Maybe, Whole

__all__ = ["BitFlip"]

_CARRIERS = (*(name for name in (*OPERATIONS, *ALIASES) if not set(operations_of(name)) <= set(SILENT)), "write")


class BitFlip(RankFault):
    """A bit flips in the data that the rank gives to the operation: silent data corruption that no checksum sees.

    `op` is a collective, a send, or the "write" of a simulated disk. `byte` counts through everything that this rank
    sends or reduces, all its tensors one after the other; None is the middle. The bit flips in the program's own
    tensor, unless a copy had to be made of that (one that is not contiguous). The program gets a ValueError if the rank
    gives no such byte: only the root gives something to a broadcast or a scatter.

    Example:
        >>> BitFlip(rank=1, op="all_reduce", nth=3, byte=0, bit=6).begins()
        'bit 6 of byte 0 of what rank 1 gives to all_reduce flips'
    """

    may_keep_out: ClassVar[bool] = False

    op: Annotated[str | None, OPERATION] = "all_reduce"
    byte: Annotated[int | None, Maybe(Whole(least=0))] = None
    bit: Annotated[int, Whole(least=0, most=7)] = 0

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and an operation that carries nothing."""
        yield from super().problems(world)
        why = "carries nothing of the rank; op is a collective, a send, or 'write' to a simulated disk"
        yield from problems_in_place(self, world, _CARRIERS, why)

    def change(self, payload: Payload) -> Payload:
        """Return the data with the bit flipped."""
        if isinstance(payload, bytes):
            data = bytearray(payload)
            data[self._place(len(data))] ^= 1 << self.bit
            return bytes(data)
        flip(payload, self._place(size_of(payload)), self.bit)
        return payload

    def _place(self, size: int) -> int:
        place = size // 2 if self.byte is None else self.byte
        if place >= size:
            raise ValueError(f"rank {self.rank} gives {size} bytes to {self.op}; there is no byte {place}")
        return place

    def begins(self) -> str:
        """Describe the flipped bit."""
        where = "in the middle" if self.byte is None else f"of byte {self.byte}"
        return f"bit {self.bit} {where} of what rank {self.rank} gives to {self.op} flips"
