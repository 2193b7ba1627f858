"""Gradients that are reduced twice: DDP has averaged them, and the program reduces them again.

Between two backward passes each gradient should be reduced once over a group. A second average changes nothing. A
second sum multiplies by the number of ranks, so the training goes on with another learning rate. The copies stay equal,
so no other judge notices. Memory does not show what DDP has averaged: a program may put other gradients in their place,
as opacus does with clipped ones. What DDP has averaged is the same on all ranks when the program reduces it.

In-place reductions are identified by their storage, so a reduction of a bucket of several gradients counts for each of
them. A program may also copy the gradients into a flat buffer, sum that, and copy it back. This is recognized where DDP
has averaged the gradients before: the buffer has as many elements as they have, and when the step begins, they are
multiplied by the number of ranks.

Doubt: a flat buffer with a part of the gradients is not recognized, nor are gradients that are clipped after the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simdist.c10d import CollectiveRead, SimWork, WorkIssued, WorkWaited
from simdist.device import memory_of
from simdist.inside.torch import TensorRef
from simdist.judges._bits import bits_of_written, local_part, numbers_of, place_in_memory
from simdist.judges._events import BackwardCalled, ModelWrapped, OptimizerBegins
from simdist.judges._judge import Hearing, Moment
from simdist.judges._models import WrappedModel, wrapped_model
from simdist.judges._parameter_names import name_in_group, names_in_frames

if TYPE_CHECKING:
    from torch import Tensor
    from torch.multiprocessing.reductions import StorageWeakRef

    from simdist.c10d.engine import Communicator
    from simdist.process import SimProcess

__all__ = ["TwiceReduced"]

_ADDS = ("sum", "avg", "premul_sum")
_DDP = "DistributedDataParallel"


@dataclass(slots=True)
class _Reduction:
    """A reduction by the program over the ranks of a group, of the bytes of a storage from `begin` to `end`."""

    storage: StorageWeakRef
    begin: int
    end: int
    group: Communicator
    what: str
    moment: Moment
    alike: bool | None = None  # whether all ranks gave the same; None until it is read
    suspect: str = ""  # a parameter whose gradient it reduces a second time if all ranks give the same


@dataclass(frozen=True, slots=True)
class _Flat:
    """A sum by the program of as many elements as a model's gradients have, with one of these before the sum."""

    parameter: TensorRef
    name: str
    numbers: np.ndarray[Any, Any]
    size: int
    reduction: _Reduction


@dataclass(slots=True)
class _Rank:
    """The reductions of a rank since its last backward pass, and its models."""

    by_program: list[_Reduction] = field(default_factory=list)
    models: list[WrappedModel] = field(default_factory=list)
    averaged: list[WrappedModel] = field(
        default_factory=list
    )  # models whose gradients DDP averages in this backward pass
    elements: dict[int, int] = field(default_factory=dict)  # of all gradients of a model, by its number
    flat: _Flat | None = None


class TwiceReduced:
    """Watches one world; `on_reduction` must be called for each `all_reduce` of the program."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        self._unread: dict[SimWork, list[_Reduction]] = {}  # after a backward pass in which DDP averages
        self._found = False
        self._listens = False  # to what becomes of works
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(ModelWrapped, self._on_model)
        hearing.listen(OptimizerBegins, self._on_step)

    def on_reduction(self, event: WorkIssued, moment: Moment) -> None:
        """Note that a rank's program reduces a tensor in place."""
        work = event.work
        if self._found or event.reduction not in _ADDS or work.member.communicator.size == 1:
            return
        rank = self._of(work.process)
        group = work.member.communicator
        for tensor in work.outputs:
            place = _bytes_of(tensor) if tensor.is_floating_point() else None
            if place is not None:
                reduction = _Reduction(*place, group, work.describe(), moment)
                rank.by_program.append(reduction)
                if rank.averaged:
                    self._await(work, reduction)
                if rank.averaged and event.reduction == "sum" and tensor.numel() > 1:
                    self._look_for_flat(rank, tensor.numel(), reduction)

    def _await(self, work: SimWork, reduction: _Reduction) -> None:
        """Compare what the ranks give once it is read. Nothing listens before the first of these: most have none."""
        if not self._listens:
            self._listens = True
            self._hearing.listen(CollectiveRead, self._on_collective)
            self._hearing.listen(WorkWaited, self._on_wait)
        self._unread.setdefault(work, []).append(reduction)

    def _on_collective(self, event: CollectiveRead) -> None:
        """Compare what the ranks give."""
        unread = [each for work in event.works for each in self._unread.pop(work, ())] if self._unread else []
        if not unread:
            return
        given = {tuple(bits_of_written(tensor) for tensor in work.outputs) for work in event.works}
        for reduction in unread:
            reduction.alike = len(given) == 1
            if reduction.alike and reduction.suspect:
                self._report(reduction.suspect, reduction, _DDP)

    def _on_wait(self, event: WorkWaited) -> None:
        """Forget a work that has failed."""
        self._unread.pop(event.work, None)

    def _look_for_flat(self, rank: _Rank, elements: int, reduction: _Reduction) -> None:
        """Keep a gradient, if a sum may be that of a flat copy of all gradients of a model."""
        for model in rank.averaged:
            if model.number not in rank.elements:
                rank.elements[model.number] = model.elements()
            if rank.elements[model.number] != elements or model.ranks != _ranks_of(reduction.group):
                continue
            for parameter, name in model.names.values():
                numbers = numbers_of(getattr(parameter(), "grad", None))
                if numbers is not None and numbers.any():
                    rank.flat = _Flat(parameter, name, numbers, reduction.group.size, reduction)
                    return

    def models_of(self, process: SimProcess) -> Sequence[WrappedModel]:
        """Return the models in DDP that a rank has made."""
        rank = self._ranks.get((process.life, process.rank))
        return () if rank is None else rank.models

    def _of(self, process: SimProcess) -> _Rank:
        who = process.life, process.rank
        rank = self._ranks.get(who)
        if rank is None:
            rank = self._ranks[who] = _Rank()
        return rank

    def _on_backward(self, event: BackwardCalled) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is not None:
            rank.by_program.clear()
            rank.flat = None
            rank.averaged = [model for model in rank.models if model.averages()]

    def _on_model(self, event: ModelWrapped) -> None:
        models = self._of(event.process).models
        models.append(wrapped_model(event, len(models)))

    def _on_step(self, event: OptimizerBegins) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if self._found or rank is None or not rank.by_program:
            return
        reductions, rank.by_program = rank.by_program, []
        for place, group in enumerate(event.optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                covers = None if parameter.grad is None else _bytes_of(parameter.grad)
                if covers is None:
                    continue
                storage, begin, end = covers
                mine = [
                    each for each in reductions if each.storage == storage and each.begin < end and begin < each.end
                ]
                earlier = self._earlier(rank, parameter, mine)
                if not earlier or (earlier == _DDP and mine[-1].alike is False):
                    continue
                name = next(filter(None, (model.name_of(parameter) for model in rank.models)), None)
                name = name or name_in_group(group, place, index, names_in_frames(sys._getframe(1)))
                if earlier == _DDP and mine[-1].alike is None:
                    mine[-1].suspect = name
                else:
                    self._report(name, mine[-1], earlier)
                    return
        flat, rank.flat = rank.flat, None
        if flat is not None:
            now = numbers_of(getattr(flat.parameter(), "grad", None))
            if now is not None and np.allclose(now, flat.size * flat.numbers, rtol=1e-4, atol=0):
                self._report(flat.name, flat.reduction, "DistributedDataParallel", of_copies=True)

    def _earlier(self, rank: _Rank, parameter: Tensor, mine: list[_Reduction]) -> str:
        """Return what has reduced the gradient before the last of `mine`, over the same group; "" for nothing."""
        if not mine:
            return ""
        last = mine[-1]
        for each in mine[:-1]:
            if each.group is last.group:
                return f"{each.what} ({each.moment.where})"
        for model in rank.averaged:
            if model.ranks == _ranks_of(last.group) and model.name_of(parameter) is not None:
                return _DDP
        return ""

    def _report(self, name: str, last: _Reduction, earlier: str, of_copies: bool = False) -> None:
        if self._found:
            return
        self._found = True
        what = f"{last.what}, of a copy" if of_copies else last.what
        self._hearing.find(
            f"the gradient of {name} is reduced twice: by {earlier}, then by {what}",
            last.moment,
            subject=name,
            notes=[
                "a sum of what is a sum already counts every rank's part as often as there are ranks; leave one out"
            ],
        )


def _bytes_of(tensor: Tensor) -> tuple[StorageWeakRef, int, int] | None:
    """Return a tensor's storage, and the tensor's begin and end in bytes there; None without memory."""
    part: Any = memory_of(local_part(tensor))  # operations on devices name the memory
    storage = place_in_memory(part)
    if storage is None or not part.numel():
        return None
    begin = part.storage_offset() * part.itemsize
    extent = 1 + sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    return storage, begin, begin + extent * part.itemsize


def _ranks_of(group: Communicator) -> tuple[int, ...]:
    return tuple(-1 if member is None else member.process.rank for member in group.members)
