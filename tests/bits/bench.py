"""A rank at work, and one call of the list with what it leaves there."""

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
Result = Sequence[Tensor] | str  # what a rank holds afterwards

MIB = (1 << 20) // 4  # floats in Gloo's largest segment
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, *COMPLEX)  # those that Gloo has functions for
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_PERIOD = 10_007  # large inputs repeat themselves: a prime, so that no chunk boundary falls on a repetition
LARGE = 64 << 10  # bytes per rank from which a case counts as large
HUGE_WORLD = 9  # above, no payload of two segments for each rank


@dataclass(slots=True)
class Bench:
    """A rank at work: where it stands in the world, and the groups that it made for earlier cases."""

    rank: int
    world: int
    _groups: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def group(self, members: tuple[int, ...]) -> Any:
        """The group of these ranks; every rank of the world asks for it."""
        if members not in self._groups:
            self._groups[members] = dist.new_group(list(members))
        return self._groups[members]

    def data(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """This rank's input: the same in every run, with NaN, infinities and zeros of both signs among the floats.

        The larger the world, the fewer of them, so that most sums are of ordinary numbers.
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
    """One call and what it leaves on a rank.

    `moved`: nothing is computed, so that NaNs keep their bits. `large`: it takes its time.
    """

    family: str
    name: str
    compute: Callable[[Bench], Result]
    moved: bool = False
    large: bool = False

    @property
    def title(self) -> str:
        """Unique in the list."""
        return f"{self.family}: {self.name}"


def short_name(dtype: torch.dtype) -> str:
    """The dtype without the module."""
    return str(dtype).removeprefix("torch.")
