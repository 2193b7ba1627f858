"""A rank that runs the list of cases, and one case: a call with its results on the rank."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

__all__ = [
    "COMPLEX",
    "DTYPES",
    "FLOATS",
    "HUGE_WORLD",
    "INTEGERS",
    "LARGE",
    "MIB",
    "OPERATIONS",
    "Bench",
    "BitsCase",
    "Result",
    "Tensor",
    "short_name",
]

Tensor = torch.Tensor
Result = Sequence[Tensor] | str  # the tensors of a rank after the call, or a refusal

MIB = (1 << 20) // 4  # floats in Gloo's largest segment
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX)  # the types that Gloo has functions for
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_PERIOD = 10_007  # large inputs repeat after so many elements; a prime, so that no chunk begins at a repetition
LARGE = 64 << 10  # bytes per rank from which a case counts as large
HUGE_WORLD = 9  # larger worlds have no payload of two segments for each rank


@dataclass(slots=True)
class Bench:
    """A rank: its number, the size of its world, and the groups that it made for earlier cases."""

    rank: int
    world: int
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def group(self, members: tuple[int, ...]) -> Any:
        """Return the group of these ranks; every rank of the world must call this."""
        if members not in self._groups:
            self._groups[members] = dist.new_group(list(members))
        return self._groups[members]

    def data(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Return this rank's input, the same in every run; floats include NaN, infinities and zeros of both signs.

        Larger worlds have fewer of these, so that most sums are of ordinary numbers.
        """
        if count > _PERIOD:
            return self.data(name, _PERIOD, dtype).repeat(count // _PERIOD + 1)[:count]
        random = torch.Generator().manual_seed(zlib.crc32(f"{name} {self.rank}".encode()))
        if dtype.is_complex:
            return torch.randn(count, dtype=dtype, generator=random)
        if dtype is torch.bool:
            return torch.randint(0, 2, (count,), generator=random).to(dtype)
        if not dtype.is_floating_point:
            return torch.randint(-100, 100, (count,), generator=random).to(dtype)
        tensor = (torch.randn(count, generator=random) * 10).to(dtype)
        special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
        where = torch.rand(count, generator=random) < 0.5 / self.world
        tensor[where] = special[torch.randint(0, 5, (count,), generator=random)][where]
        return tensor


@dataclass(frozen=True, slots=True)
class BitsCase:
    """One call and its results on a rank.

    `moved`: the call computes nothing, so NaNs keep their bits. `large`: the case takes long.
    """

    family: str
    name: str
    compute: Callable[[Bench], Result]
    moved: bool = False
    large: bool = False

    @property
    def title(self) -> str:
        """A name that is unique in the list."""
        return f"{self.family}: {self.name}"


def short_name(dtype: torch.dtype) -> str:
    """Return the name of the dtype without its module."""
    return str(dtype).removeprefix("torch.")
