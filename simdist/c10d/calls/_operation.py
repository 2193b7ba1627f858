"""A collective apart from its caller: its name, size, root, and the functions that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from simdist.c10d.calls import UNCOMPARED, UNSHAPED

if TYPE_CHECKING:
    from simdist.c10d.engine import Program

__all__ = ["Fields", "Key", "Operation", "Row", "Shapes", "fields_of"]


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of the tensors of a call that takes several, or whose outputs do not follow from its input."""

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], outputs: Sequence[Sequence[int]] | None = None) -> Shapes:
        """Return the shapes of the inputs, and of the outputs; by default the outputs are shaped like the inputs."""
        inputs = tuple(tuple(tensor.shape) for tensor in tensors)
        return cls(inputs, inputs if outputs is None else tuple(tuple(shape) for shape in outputs))


class Key(NamedTuple):
    """The parameters of an operation, by which a group finds it."""

    name: str
    size: int = 0
    element: int = 1
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    reduction: str = ""
    root: int = -1
    extra: Shapes | None = None


Fields: TypeAlias = tuple[str, int, int, torch.dtype | None, tuple[int, ...], str, int, Shapes | None]
"""A key, or a plain tuple that is equal to one. Hot: Python makes a plain tuple faster than a named one."""

Row: TypeAlias = tuple[str, int, torch.dtype, str]
"""The short key of an operation on a tensor of one dimension: name, bytes, type, reduction. Hot: found faster."""


def fields_of(key: Fields | Row) -> Fields:
    """The full key of a short one; a full key as it is."""
    if len(key) == 4:
        name, size, dtype, reduction = key
        return Key(name, size, dtype.itemsize, dtype, (size // dtype.itemsize,), reduction)
    return key


class Operation:
    """An operation with its parameters: what ranks compare to see whether they called the same thing.

    `size` is the payload in bytes (per rank for all_gather, gather, scatter), `element` the bytes of one element,
    `reduction` the reduce operation's name, `root` a group rank or -1, `extra` the shapes of the tensors if there are
    several; a reduce_scatter that has them is that of a list.
    """

    __slots__ = (
        "dtype_name",
        "element",
        "extra",
        "index",
        "name",
        "past",
        "programs",
        "reduction",
        "root",
        "shape",
        "size",
    )

    def __init__(
        self,
        name: str,
        size: int = 0,
        element: int = 1,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] = (),
        reduction: str = "",
        root: int = -1,
        extra: Shapes | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self.element = element
        self.dtype_name = "" if dtype is None else str(dtype).removeprefix("torch.")
        self.shape = tuple(shape)
        self.reduction = reduction
        self.root = root
        self.extra = extra
        self.index = -1  # in `Communicator.operations`
        # The algorithm's programs by rank, as far as made; an operation belongs to one group.
        self.programs: dict[int, Program] = {}
        self.past: object = None  # what the engine remembers of earlier calls, if anything

    def fits(self, other: Operation, *, strict: bool = False) -> bool:
        """True if two ranks may call these two together; `strict` also wants equal shapes."""
        if strict and self.shape != other.shape and self.name not in UNSHAPED:
            return False
        return self is other or (
            self.name == other.name
            and self.root == other.root
            and self.reduction == other.reduction
            and (
                self.name in UNCOMPARED
                or (self.name == "sparse_all_reduce" and self.shape == other.shape)
                or (self.size == other.size and self.dtype_name == other.dtype_name)
            )
            and (self.name != "reduce_scatter" or self.entry_bytes() == other.entry_bytes())
        )

    def shapes(self) -> Sequence[Sequence[int]]:
        """The shapes of the tensors that the caller gave: several for a coalesced operation, none for a barrier."""
        if self.extra is not None and self.name != "reduce_scatter":
            return self.extra.inputs
        return [self.shape] if self.dtype_name else []

    def tensors(self, rank: int, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
        """The shapes of inputs and outputs on one rank as in Gloo's work, with a root's lists stacked into one."""
        if self.extra is not None:
            return [list(shape) for shape in self.extra.inputs], [list(shape) for shape in self.extra.outputs]
        own = [list(self.shape)] if self.dtype_name else []
        stacked = [[ranks, *self.shape]]
        if self.name == "all_gather":
            return own, stacked
        if self.name == "gather":
            return own, stacked if rank == self.root else []
        if self.name == "scatter":
            return stacked if rank == self.root else [], own
        return own, own

    @property
    def is_list_of_reductions(self) -> bool:
        """True for a reduce_scatter of a list, which is one all-reduce for each entry."""
        return self.name == "reduce_scatter" and self.extra is not None

    def entry_bytes(self) -> list[int] | None:
        """The bytes of each entry of a reduce_scatter of a list; None if it takes one tensor."""
        return None if self.extra is None else [math.prod(shape) * self.element for shape in self.extra.inputs]

    def describe(self) -> str:
        """Everything that must agree, for the text of a mismatch."""
        parts = [f"{self.dtype_name}{list(self.shape)}" if self.dtype_name else ""]
        parts += [self.reduction, f"root={self.root}" if self.root >= 0 else ""]
        return f"{self.name}({', '.join(part for part in parts if part)})"
