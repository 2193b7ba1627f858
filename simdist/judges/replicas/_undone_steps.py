"""Optimizer steps that a broadcast undoes: its source sends the value from before the step.

Where each rank steps a part of the parameters and then sends them to the others, as ZeRO does, the source of each
broadcast has to be the rank that stepped. From any other source the old value arrives. All copies are equal
afterwards, and the parameter is never trained.

Parameters are watched from the first broadcast of them on, so nothing is found of a rank's first step. A broadcast of a
copy, such as a flat buffer of several parameters, is not recognized. Nor is one on a device that has not arrived yet
when the next backward pass begins.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simdist.c10d import WorkIssued
from simdist.inside.torch import TensorRef
from simdist.judges._bits import bits_of, place_in_memory, tensors_in
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges._parameter_names import name_in_group, names_in_frames
from simdist.judges._sites import site_of

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

    from simdist.process import SimProcess

__all__ = ["UndoneSteps"]


@dataclass(slots=True)
class _Parameter:
    """A parameter of an optimizer. `before` has its bits from before the last step, if the step changed them."""

    tensor: TensorRef
    name: str
    optimizer: int
    watched: bool = False
    at_begin: int | None = None  # its bits when the current step began
    before: int | None = None
    step: int = 0
    broadcast: Moment | None = None  # the last broadcast that filled it
    source: int = 0


@dataclass(slots=True)
class _Rank:
    parameters: dict[StorageWeakRef, _Parameter] = field(default_factory=dict)
    watched: list[_Parameter] = field(default_factory=list)


class UndoneSteps:
    """Watches one world. It reads no parameter that is never broadcast."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        self._found = False
        self._listens = False
        hearing.listen(OptimizerBegins, self._on_begin)
        hearing.listen(WorkIssued, self._on_work)

    def _of(self, process: SimProcess) -> _Rank | None:
        return None if self._found else self._ranks.get((process.life, process.rank))

    def _watch(self, rank: _Rank, parameter: _Parameter) -> None:
        parameter.watched = True
        rank.watched.append(parameter)
        if not self._listens:  # programs that broadcast no parameters do not pay for it
            self._listens = True
            self._hearing.listen(OptimizerStepped, self._on_step)
            self._hearing.listen(BackwardCalled, self._on_backward)

    def _on_begin(self, event: OptimizerBegins) -> None:
        process = event.process
        if event.number == 0:
            rank = self._ranks.setdefault((process.life, process.rank), _Rank())
            names = names_in_frames(sys._getframe(1))
            for place, group in enumerate(event.optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    key = place_in_memory(parameter)
                    if key is not None:
                        name = name_in_group(group, place, index, names)
                        rank.parameters[key] = _Parameter(TensorRef(parameter), name, event.index)
        elif self._listens and (known := self._of(process)) is not None:
            self._look(known)
            for each in known.watched:
                if each.optimizer == event.index:
                    each.at_begin, each.step = bits_of(each.tensor()), event.number

    def _on_step(self, event: OptimizerStepped) -> None:
        rank = self._of(event.process)
        for each in rank.watched if rank is not None else ():
            if each.optimizer == event.index:
                begun, each.at_begin = each.at_begin, None
                each.before = None if begun == bits_of(each.tensor()) else begun

    def _on_work(self, event: WorkIssued) -> None:
        if event.name != "broadcast":  # hot
            return
        work = event.work
        rank = self._of(work.process)
        if rank is None:
            return
        for tensor in tensors_in(work.outputs):
            key = place_in_memory(tensor)
            parameter = None if key is None else rank.parameters.get(key)
            if parameter is None:
                continue
            if not parameter.watched:
                self._watch(rank, parameter)
            if work.member.rank != event.root:
                parameter.broadcast = self._hearing.moment(work.process, site_of(sys._getframe(1)))
                parameter.source = work.member.communicator.world_ranks[event.root]

    def _on_backward(self, event: BackwardCalled) -> None:
        rank = self._of(event.process)
        if rank is not None:
            self._look(rank)

    def _look(self, rank: _Rank) -> None:
        """Look whether the broadcasts since the last step have brought values from before it."""
        for each in rank.watched:
            moment, each.broadcast = each.broadcast, None
            if moment is None or self._found:
                continue
            before, each.before = each.before, None
            if before is None or bits_of(each.tensor()) != before:
                continue
            self._found = True
            self._hearing.find(
                f"optimizer step {each.step} of {each.name} is undone: the broadcast from rank {each.source} "
                "has the value from before the step",
                moment,
                subject=each.name,
                step=each.step,
                notes=[f"rank {each.source} does not train it: broadcast it from rank {moment.rank}, which does"],
            )
