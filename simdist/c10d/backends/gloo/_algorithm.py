"""How Gloo does each operation: schedule, order of additions, and cost on an idle network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from simdist.c10d.backends.gloo import _costs, _folds, _schedules
from simdist.c10d.calls import RINGS
from simdist.c10d.calls._operation import Operation
from simdist.c10d.engine import Algorithm, Phase, Program, Ring, Sizes
from simdist.errors import InternalError

__all__ = ["GlooAlgorithm"]

Tensor = torch.Tensor

_KEPT_FOR = 64  # ranks: the schedules of larger groups take more memory than time
_INTEGER_NAMES = {"int8": "Char", "uint8": "Byte", "int32": "Int", "int64": "Long", "bool": "Bool"}


class GlooAlgorithm(Algorithm):
    """Segmented rings, binomial broadcast, stars, and a dissemination barrier (gloo/*.cc, torch 2.13)."""

    silent_when_empty = (*RINGS, "reduce")  # gloo/allreduce.cc and its like

    all_reduce = staticmethod(_folds.all_reduce)
    reduce = staticmethod(_folds.reduce)
    reduce_parts = staticmethod(_folds.reduce_parts)
    combine = staticmethod(_folds.combine)
    divide = staticmethod(_folds.divide)

    def leave_reduce(
        self,
        tensor: Tensor,
        inputs: Mapping[int, Tensor],
        reduction: str,
        rank: int,
        ranks: int,
        *,
        paired: bool = False,
    ) -> None:
        """Fill the tensor of a rank that owns no chunk."""
        _folds.leave_reduce(tensor, inputs, reduction, rank, ranks, paired=paired)

    def refused_result(self, operation: Operation) -> RuntimeError | None:
        """Return the error of an average of integers: torch divides at the end, and integers cannot hold the result."""
        if operation.reduction == "avg" and operation.dtype_name in _INTEGER_NAMES:
            return RuntimeError(
                f"result type Float can't be cast to the desired output type {_INTEGER_NAMES[operation.dtype_name]}"
            )
        return None

    def slot(self, operation: Operation) -> str:
        """Return the name under which messages match; a reduce_scatter is made of all-reduces."""
        return "all_reduce" if operation.name == "reduce_scatter" else operation.name

    def lets_some_go(self, operation: Operation, ranks: int) -> bool:
        """True for rooted copies, and for a reduce shorter than the ring, of which the last rank owns nothing."""
        if operation.name != "reduce" or not operation.size:
            return super().lets_some_go(operation, ranks)
        _, per_rank, segment = _costs.reduce_segments(operation.size, operation.element, ranks)
        return per_rank * segment * (ranks - 1) >= operation.size

    def duration_ns(self, operation: Operation, ranks: int, latency_ns: int, byte_ns: float) -> int:
        """Return the duration by the closed forms of `_costs`."""
        name, size = operation.name, operation.size
        if name in ("all_reduce", "reduce_scatter"):
            return _costs.allreduce_ns(size, operation.element, ranks, latency_ns, byte_ns)
        if name == "reduce":
            return _costs.reduce_ns(size, operation.element, ranks, latency_ns, byte_ns)
        if name in ("all_gather", "sparse_all_reduce"):
            return _costs.allgather_ns(size, ranks, latency_ns, byte_ns)
        if name == "all_to_all":
            return _costs.alltoall_ns(size // max(1, ranks), ranks, latency_ns, byte_ns)
        return _costs.barrier_ns(ranks, latency_ns)

    def traffic(self, operation: Operation, ranks: int) -> Sequence[tuple[int, int, float]]:
        """Return (source, target, bytes). Rings load all their links equally, apart from clipped segments."""
        name, size = operation.name, operation.size
        if name in ("all_reduce", "reduce_scatter"):
            return [(rank, (rank - 1) % ranks, 2 * size * (ranks - 1) / ranks) for rank in range(ranks)]
        if name in ("all_gather", "sparse_all_reduce"):
            return [(rank, (rank + 1) % ranks, size * (ranks - 1)) for rank in range(ranks)]
        return super().traffic(operation, ranks)

    def program(self, operation: Operation, rank: int, ranks: int, sizes: Sizes) -> Program:
        """Return the schedule by `_schedules`; small groups keep it with the operation."""
        if operation.name == "all_to_all":
            return _schedules.alltoall(rank, ranks, *sizes(rank))
        if ranks > _KEPT_FOR:
            return _schedule(operation, rank, ranks)
        kept: Program | None = operation.programs.get(rank)
        if kept is None:
            kept = operation.programs[rank] = _schedule(operation, rank, ranks)
        return kept

    def ring(self, operation: Operation, ranks: int) -> Ring | None:
        """Return the ring of all-reduces and gathers as in the schedules; None if there is nothing to send."""
        size = operation.size
        if operation.is_list_of_reductions or not size or ranks < 2:
            return None
        if operation.name == "all_gather":
            halves = size // 2, size - size // 2
            phase = Phase(2 * (ranks - 1), 0, reduced=False)
            return Ring((phase,), halves, size - size // 2, 0, 1, receive_first=False, sends_empty=True, moves=False)
        if operation.name not in ("all_reduce", "reduce_scatter"):
            return None
        count, stride, segment = _costs.segments(size, operation.element, ranks)
        lengths = tuple(max(0, min(segment, size - index * segment)) for index in range(count))
        phases = Phase(count - stride, 1, reduced=True), Phase(count - stride, 0, reduced=False)
        return Ring(phases, lengths, segment, stride, -1, receive_first=True, sends_empty=False, moves=True)


def _schedule(operation: Operation, rank: int, ranks: int) -> Program:
    name, size, element, root = operation.name, operation.size, operation.element, operation.root
    if operation.is_list_of_reductions:
        return _schedules.allreduces(rank, ranks, operation.entry_bytes() or (), element)
    if name in ("all_reduce", "reduce_scatter"):
        return _schedules.allreduce(rank, ranks, size, element)
    if name == "reduce":
        return _schedules.reduce(rank, ranks, size, element, root)
    if name == "broadcast":
        return _schedules.broadcast(rank, ranks, size, root)
    if name in ("all_gather", "sparse_all_reduce"):
        # Contributions to a sparse sum may differ in size; each rank is assumed to send its own size in every step.
        return _schedules.allgather(rank, ranks, size)
    if name == "gather":
        return _schedules.gather(rank, ranks, size, root)
    if name == "scatter":
        return _schedules.scatter(rank, ranks, size, root)
    if name != "barrier":
        raise InternalError(f"Gloo's way of {name} is not known")
    return _schedules.barrier(rank, ranks)
