"""The dimensions of a run's ranks, and whole values from the parts that ranks return."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Layout", "Leaf", "in_order", "leaves_of", "ratio_between", "relative_error", "tolerance_of", "whole_of"]

_LENIENT = 1024  # roundings, in units of the last place of the largest element


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of ranks in each dimension, such as {"dp": 2, "tp": 2}; 1 in all others.

    Example:
        >>> layout = Layout.of({"dp": 2, "tp": 2})
        >>> layout["tp"], layout["pp"], layout.world_size, str(layout)
        (2, 1, 4, 'dp=2, tp=2')
    """

    sizes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, given: object) -> Layout:
        """Return the layout for a number of ranks ("dp"), or for a mapping from dimensions to sizes.

        Raises:
            ValueError: `given` is neither.
        """
        if isinstance(given, Layout):
            return given
        if isinstance(given, int) and not isinstance(given, bool):
            given = {"dp": given}
        if (
            not isinstance(given, Mapping)
            or not all(isinstance(name, str) for name in given)
            or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in given.values())
        ):
            raise ValueError(f"expected a number of ranks, or a mapping such as {{'dp': 2, 'tp': 2}}, found {given!r}")
        return cls(dict(given))

    def __hash__(self) -> int:
        return hash(tuple(self.sizes.items()))

    def __getitem__(self, name: str) -> int:
        return self.sizes.get(name, 1)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.sizes.items()) or "one rank"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value that a rank returned: its name, and the step, which is its index in a list."""

    step: int | None
    name: str
    value: object


def leaves_of(value: object, name: str = "", step: int | None = None) -> Iterator[Leaf]:
    """Yield the values inside a rank's return value: tables give names, the outermost list gives steps."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves_of(each, f"{name}.{key}" if name else str(key), step)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from leaves_of(each, name if step is None else f"{name}[{index}]", index if step is None else step)
    else:
        yield Leaf(step, name, value)


def whole_of(
    values: Mapping[int, object], reference: torch.Tensor, world_size: int
) -> Mapping[str, torch.Tensor] | str:
    """Return the ranks' values of one name as tensors of the reference's shape, by owner; or the problem as a text.

    Parts are joined: those of a DTensor by its placements, others along the dimension in which they are smaller, in the
    order of ranks.
    """
    found: dict[str, torch.Tensor] = {}
    tensors = {rank: _plain(value) for rank, value in values.items()}
    first = next(iter(values.values()))
    if hasattr(first, "placements"):
        return {"the DTensor": _of_dtensor(values)}
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if shapes == {tuple(reference.shape)}:
        for rank, tensor in tensors.items():
            found[f"rank {rank}"] = tensor
        return found
    smaller = [
        dimension
        for dimension, size in enumerate(reference.shape)
        if all(len(shape) == reference.dim() and shape[dimension] != size for shape in shapes)
    ]
    if len(smaller) != 1 or any(
        shape[d] != size for shape in shapes for d, size in enumerate(reference.shape) if d != smaller[0]
    ):
        return f"has shape {list(next(iter(shapes)))}, on one rank {list(reference.shape)}"
    (dimension,) = smaller
    ranks = sorted(tensors)
    count = round(reference.shape[dimension] / tensors[ranks[0]].shape[dimension])
    orders = {f"ranks {ranks}": ranks}
    if count and len(ranks) > count and len(ranks) % count == 0:
        apart = len(ranks) // count
        orders = {f"ranks {part}": part for part in ([ranks[i * count : (i + 1) * count] for i in range(apart)])}
        orders |= {f"ranks {part}": part for part in [ranks[i::apart] for i in range(apart)]}
    for who, order in orders.items():
        joined = torch.cat([tensors[rank] for rank in order], dimension)
        if joined.shape == reference.shape:
            found[who] = joined
    return found or f"has parts that do not make up shape {list(reference.shape)}"


def _plain(value: object) -> torch.Tensor:
    tensor: Any = getattr(value, "_local_tensor", value)
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().cpu()
    return torch.tensor(float(tensor), dtype=torch.float32)


def _of_dtensor(values: Mapping[int, object]) -> torch.Tensor:
    """Return the whole of a DTensor, from the parts of all ranks."""
    first: Any = next(iter(values.values()))
    mesh, placements = first.device_mesh.mesh, first.placements

    def assemble(ranks: torch.Tensor, dimension: int) -> torch.Tensor:
        if dimension == len(placements):
            return _plain(values[int(ranks)])
        parts = [assemble(each, dimension + 1) for each in ranks]
        placement = placements[dimension]
        if placement.is_shard():
            return torch.cat(parts, placement.dim)
        return parts[0] if placement.is_replicate() else torch.stack(parts).sum(0)

    return assemble(mesh, 0)


def tolerance_of(dtype: torch.dtype) -> float:
    """Return the allowed difference of values of a type, relative to the largest: that of sums in another order."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return 0.0
    eps = torch.finfo(dtype).eps
    return min(_LENIENT * eps, math.sqrt(eps))


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference, relative to the reference's largest element; infinite if only one is a number."""
    if not reference.numel():
        return 0.0
    value, reference = _wide(value), _wide(reference)
    same = (value == reference) | (value.isnan() & reference.isnan())
    if bool(same.all()):
        return 0.0
    difference = (value - reference).abs()[~same]
    if not bool(torch.isfinite(difference).all()):
        return math.inf
    scale = float(reference[torch.isfinite(reference)].abs().max()) if bool(torch.isfinite(reference).any()) else 0.0
    return float(difference.max()) / (scale or 1.0)


def ratio_between(value: torch.Tensor, reference: torch.Tensor) -> float | None:
    """Return the factor by which the reference was multiplied, if that is the only difference."""
    value, reference = _wide(value).flatten(), _wide(reference).flatten()
    power = float((reference * reference).abs().sum()) if reference.numel() else 0.0
    if not power or not math.isfinite(power):
        return None
    ratio = float((value * reference).sum().real) / power
    return ratio if math.isfinite(ratio) and relative_error(value, reference * ratio) < 1e-3 else None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def in_order(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Sort leaves by step; leaves without a step, such as the final parameters, are last."""
    return sorted(leaves, key=lambda leaf: (leaf.step is None, leaf.step or 0))
