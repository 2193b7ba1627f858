"""`BadValues`: some elements that a rank gives to an operation are not a number, infinite, or zero."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from simdist.c10d.calls import SILENT
from simdist.faults._fault import Problem, Surroundings
from simdist.faults._fields import OPERATION, PART
from simdist.faults._in_place import problems_in_place
from simdist.faults._operations import ALIASES, OPERATIONS, operations_of
from simdist.faults._rank_fault import Payload, RankFault
from simdist.values import OneOf

if TYPE_CHECKING:
    import torch

__all__ = ["BadValues"]

_VALUES = {"nan": float("nan"), "inf": float("inf"), "zeros": 0.0}
_CARRIERS = tuple(name for name in (*OPERATIONS, *ALIASES) if not set(operations_of(name)) <= set(SILENT))


class BadValues(RankFault):
    """Some elements that the rank gives to an operation are not a number, infinite, or zero, silently.

    A loss that has overflowed gives "nan" or "inf", a buffer that was cleared too early "zeros". `share` of the
    elements have that value, at least one; which ones is drawn from the run's seed. They count through everything that
    this rank sends or reduces, all its tensors one after the other. They change in the program's own tensors, unless a
    copy had to be made of these (one that is not contiguous). The program gets a ValueError if the rank gives nothing,
    or elements of a type that has no such value: whole numbers are never nan, and numbers of eight bits are sent as
    bytes unless they are reduced.

    Example:
        >>> import simdist, torch, torch.distributed as dist
        >>> def sums():
        ...     dist.init_process_group("gloo")
        ...     tensor = torch.ones(4)
        ...     dist.all_reduce(tensor)
        ...     return tensor.tolist()
        >>> simdist.run(sums, world_size=2, faults=[BadValues(rank=1, nth=1)]).values[0]
        [2.0, 2.0, 2.0, nan]
    """

    may_keep_out: ClassVar[bool] = False

    op: Annotated[str | None, OPERATION] = "all_reduce"
    values: Annotated[str, OneOf(tuple(_VALUES))] = "nan"
    share: Annotated[float, PART] = 0.01

    def problems(self, world: Surroundings) -> Iterator[Problem]:
        """Yield the problems of every rank fault, and an operation that carries no tensors."""
        yield from super().problems(world)
        yield from problems_in_place(
            self, world, _CARRIERS, "carries no tensors of the rank; op is a collective or a send"
        )

    def change_drawn(self, payload: Payload, draw: Callable[[], float]) -> Payload:
        """Return the tensors with that value in some places."""
        assert not isinstance(payload, bytes)  # it strikes no writes
        size = sum(each.numel() for each in payload)
        if not size:
            raise ValueError(f"rank {self.rank} gives nothing to {self.op}; there is no element to make {self.values}")
        count = max(1, round(size * self.share))
        places = random.Random(int(draw() * 2**53)).sample(range(size), count)
        first = 0
        for tensor in payload:
            last = first + tensor.numel()
            self._spoil(tensor, [place - first for place in places if first <= place < last])
            first = last
        return payload

    def _spoil(self, tensor: torch.Tensor, places: list[int]) -> None:
        """Put the value into elements of a tensor; autograd does not see it."""
        import torch

        if not places:
            return
        bad = torch.tensor([_VALUES[self.values]])
        if self.values != "zeros" and not (tensor.is_complex() or _has(tensor.dtype, bad)):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(f"rank {self.rank} gives {dtype} to {self.op}, which has no {self.values}")
        bad, data = bad.to(tensor.dtype), tensor.detach()
        if tensor.element_size() == 1:  # types of eight bits have no indexing of their own
            bad, data = bad.view(torch.uint8), data.view(torch.uint8)
        with torch.no_grad():
            data[torch.unravel_index(torch.tensor(places), tensor.shape)] = bad[0]

    def begins(self) -> str:
        """Describe the share and the new values."""
        what = "0" if self.values == "zeros" else self.values
        return f"{100 * self.share:g} % of what rank {self.rank} gives to {self.op} becomes {what}"


def _has(dtype: torch.dtype, bad: torch.Tensor) -> bool:
    """True if a type has this value, not a number or infinite: no integer has, and some of eight bits lack one."""
    import torch

    if not dtype.is_floating_point:
        return False
    made = bad.to(dtype).to(bad.dtype)
    return torch.equal(made.isnan(), bad.isnan()) and torch.equal(made.isinf(), bad.isinf())
