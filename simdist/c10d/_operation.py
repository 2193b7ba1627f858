"""What a collective is, apart from who calls it: its name, size, root, and the functions that follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simdist.c10d import _programs
from simdist.c10d._programs import Program
from simdist.cluster import allgather_ns, allreduce_ns, alltoall_ns, barrier_ns, reduce_ns, reduce_segments

__all__ = ["Operation", "Shapes"]

_KEPT_FOR = 64  # ranks: the schedules of larger groups take more memory than time
_ROOTED = ("broadcast", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes of the tensors of a call that takes several, or whose outputs do not follow from its input."""

    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Sequence[Any], outputs: Sequence[Sequence[int]] | None = None) -> Shapes:
        """Those of the inputs, and of the outputs, which are the inputs if nothing else is said."""
        inputs = tuple(tuple(tensor.shape) for tensor in tensors)
        return cls(inputs, inputs if outputs is None else tuple(tuple(shape) for shape in outputs))


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
        dtype: Any = None,
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
        self.programs: dict[int, Program] = {}  # made so far, by rank; an operation belongs to one group

    def fits(self, other: Operation, *, strict: bool = False) -> bool:
        """True if two ranks may call these two together; `strict` also wants equal shapes."""
        if strict and self.shape != other.shape and self.name not in ("all_to_all", "reduce_scatter"):
            return False
        return self is other or (
            self.name == other.name
            and self.root == other.root
            and self.reduction == other.reduction
            and (
                self.name in ("all_to_all", "barrier")
                or (self.name == "sparse_all_reduce" and self.shape == other.shape)
                or (self.size == other.size and self.dtype_name == other.dtype_name)
            )
            and (self.name != "reduce_scatter" or self.entry_bytes() == other.entry_bytes())
        )

    @property
    def slot(self) -> str:
        """Under which name Gloo matches its messages: a reduce_scatter is made of all-reduces."""
        return "all_reduce" if self.name == "reduce_scatter" else self.name

    def shapes(self) -> Sequence[Sequence[int]]:
        """The shapes of the tensors that the caller gave: several for a coalesced operation, none for a barrier."""
        if self.extra is not None and self.name != "reduce_scatter":
            return self.extra.inputs
        return [self.shape] if self.dtype_name else []

    def tensors(self, rank: int, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
        """The shapes of inputs and outputs on one rank as Gloo's work has them, lists of a root stacked into one."""
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
        """The bytes of each entry of a reduce_scatter of a list; None for that of one tensor."""
        return None if self.extra is None else [math.prod(shape) * self.element for shape in self.extra.inputs]

    def describe(self) -> str:
        """For a mismatch: everything that must agree."""
        parts = [f"{self.dtype_name}{list(self.shape)}" if self.dtype_name else ""]
        parts += [self.reduction, f"root={self.root}" if self.root >= 0 else ""]
        return f"{self.name}({', '.join(part for part in parts if part)})"

    def lets_some_go(self, ranks: int) -> bool:
        """True if a rank may be done before all have come: rooted operations, and a reduce shorter than the ring."""
        if self.name in _ROOTED:
            return True
        if self.name != "reduce" or not self.size:
            return False
        _, per_rank, segment = reduce_segments(self.size, self.element, ranks)
        return per_rank * segment * (ranks - 1) >= self.size  # the last rank owns nothing

    def duration_ns(self, ranks: int, latency_ns: int, byte_ns: float) -> int:
        """From the last arrival to completion on an idle network, for operations that need everyone."""
        if self.name in ("all_reduce", "reduce_scatter"):
            return allreduce_ns(self.size, self.element, ranks, latency_ns, byte_ns)
        if self.name == "reduce":
            return reduce_ns(self.size, self.element, ranks, latency_ns, byte_ns)
        if self.name in ("all_gather", "sparse_all_reduce"):
            return allgather_ns(self.size, ranks, latency_ns, byte_ns)
        if self.name == "all_to_all":
            return alltoall_ns(self.size // max(1, ranks), ranks, latency_ns, byte_ns)
        return barrier_ns(ranks, latency_ns)

    def program(self, rank: int, ranks: int, sizes: Callable[[int], tuple[list[int], list[int]]]) -> Program:
        """The message schedule of one rank; `sizes` gives what it sends and receives in an all_to_all."""
        if self.name == "all_to_all":
            return _programs.alltoall(rank, ranks, *sizes(rank))
        if ranks > _KEPT_FOR:
            return self._schedule(rank, ranks)
        kept = self.programs.get(rank)
        if kept is None:
            kept = self.programs[rank] = self._schedule(rank, ranks)
        return kept

    def _schedule(self, rank: int, ranks: int) -> Program:
        name = self.name
        if self.is_list_of_reductions:
            return _programs.allreduces(rank, ranks, self.entry_bytes() or (), self.element)
        if name in ("all_reduce", "reduce_scatter"):
            return _programs.allreduce(rank, ranks, self.size, self.element)
        if name == "reduce":
            return _programs.reduce(rank, ranks, self.size, self.element, self.root)
        if name == "broadcast":
            return _programs.broadcast(rank, ranks, self.size, self.root)
        if name in ("all_gather", "sparse_all_reduce"):
            # What the ranks contribute to a sparse sum may differ in size; each is taken to send its own all the way.
            return _programs.allgather(rank, ranks, self.size)
        if name == "gather":
            return _programs.gather(rank, ranks, self.size, self.root)
        if name == "scatter":
            return _programs.scatter(rank, ranks, self.size, self.root)
        return _programs.barrier(rank, ranks)
