"""`WrongResult`: one rank gets another result out of a collective than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from simdist.c10d.calls import FILLING
from simdist.faults._bits import flip, size_of
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION, SIDE
from simdist.faults._operations import ALIASES, OPERATIONS, operations_of
from simdist.faults._rank_fault import RankFault
from simdist.faults._trigger import When
from simdist.values import Maybe, Whole

if TYPE_CHECKING:
    import torch

__all__ = ["WrongResult"]

_FILLED = tuple(name for name in (*OPERATIONS, *ALIASES) if set(operations_of(name)) & set(FILLING))


class WrongResult(RankFault):
    """A bit is wrong in what one rank gets out of a collective, silently; all others get the right result.

    A network card or a memory that corrupts data on its way has this effect: replicas differ from then on. `byte`
    counts through everything that the operation fills on this rank, its tensors one after the other; None is the
    middle. It changes when the result is there, also of an operation that no task waits for yet, and only if the
    operation succeeds. The rank gets a ValueError if the operation fills no such byte: a broadcast fills nothing on its
    root, a reduce on its root alone.

    Example:
        >>> import simdist, torch, torch.distributed as dist
        >>> def sums():
        ...     dist.init_process_group("gloo")
        ...     tensor = torch.ones(2)
        ...     dist.all_reduce(tensor)
        ...     return tensor.tolist()
        >>> simdist.run(sums, world_size=2, faults=[WrongResult(rank=1, nth=1, byte=3, bit=7)]).values
        [[2.0, 2.0], [-2.0, 2.0]]
    """

    may_keep_out: ClassVar[bool] = False

    op: Annotated[str | None, OPERATION] = "all_reduce"
    when: Annotated[When, SIDE] = "after"
    byte: Annotated[int | None, Maybe(Whole(least=0))] = None
    bit: Annotated[int, Whole(least=0, most=7)] = 0

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, an operation that fills nothing, and a side that is too early."""
        yield from super().problems(world)
        if world.fine("op") and self.op not in _FILLED:
            yield "op", f"{self.op!r} fills no tensors; op is a collective that does"
        if world.fine("when") and self.when != "after":
            yield "when", f"{self.when!r} is too early; the result is there after the operation"

    def change_result(self, results: list[torch.Tensor], draw: Callable[[], float]) -> list[torch.Tensor]:
        """Return the results with the bit flipped."""
        size = size_of(results)
        place = size // 2 if self.byte is None else self.byte
        if place >= size:
            raise ValueError(f"rank {self.rank} gets {size} bytes out of {self.op}; there is no byte {place}")
        flip(results, place, self.bit)
        return results

    def begins(self) -> str:
        """Describe the wrong bit."""
        where = "in the middle" if self.byte is None else f"of byte {self.byte}"
        return f"bit {self.bit} {where} of what rank {self.rank} gets out of {self.op} is wrong"
