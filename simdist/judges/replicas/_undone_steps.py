"""Optimizer steps that a broadcast undoes: its source sends the value from before the step.

Where each rank steps a part of the parameters and then sends them to the others, as ZeRO does, the source of each
broadcast has to be the rank that stepped. From any other source the old value arrives. All copies are equal
afterwards, and the parameter is never trained.

A program may also send flat copies: it packs several parameters into one buffer, sends that, and copies what arrives
back. A buffer counts as a copy of successive parameters of an optimizer that have as many elements. What its source has
sent for each of them is kept as a checksum, so nothing is reported if the old value has another origin.

A program may take a step back on purpose, and then send the old value. So nothing is reported if the receiver had the
old value before the broadcast, or if the source had stepped the parameter, too.

Parameters are watched from the first broadcast of them on, so nothing is found of a rank's first step. Nor is a
broadcast on a device that has not arrived yet when the next backward pass begins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simdist.c10d import WorkIssued
from simdist.inside.torch import TensorRef
from simdist.judges._bits import bits_of, bits_of_parts, place_in_memory, tensors_in
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges._parameter_names import name_in_group, names_in_frames
from simdist.judges._sites import site_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.multiprocessing.reductions import StorageWeakRef

    from simdist.c10d import SimWork
    from simdist.c10d.engine import Communicator
    from simdist.process import SimProcess

__all__ = ["UndoneSteps"]

_MOST_RUNS = 4  # of successive parameters with as many elements as a buffer
_MOST_SIZES = 256  # of buffers that are kept in mind
_MOST_SENT = 256  # broadcasts whose values are kept
_Broadcast = tuple["Communicator", int]  # its group, and its number there
_Part = tuple[int, int]  # of a flat buffer: the index of its first element, and its size


@dataclass(slots=True)
class _Parameter:
    """A parameter of an optimizer. `before` has its bits from before the last step, if the step changed them."""

    tensor: TensorRef
    name: str
    optimizer: int
    elements: int
    watched: bool = False
    at_begin: int | None = None  # its bits when the current step began
    before: int | None = None
    step: int = 0
    received: _Received | None = None  # the last broadcast that filled it
    in_copies: list[_Received] = field(default_factory=list)  # broadcasts of copies since the last backward pass


@dataclass(frozen=True, slots=True)
class _Received:
    """A broadcast of a parameter to this rank. `part` is the parameter's part of a flat copy; None without a copy."""

    broadcast: _Broadcast
    part: _Part | None
    source: int
    moment: Moment


@dataclass(slots=True)
class _Rank:
    parameters: dict[StorageWeakRef, _Parameter] = field(default_factory=dict)
    watched: list[_Parameter] = field(default_factory=list)
    runs: dict[int, list[list[_Parameter]]] = field(default_factory=dict)  # by how many elements they have together


class UndoneSteps:
    """Watches one world. It reads no parameter that is never broadcast."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        # Parts of flat buffers of so many elements, on any rank.
        self._parts: dict[int, dict[_Part, None]] = {}
        # What a source has sent: the bits of each part, and True in its place if the source has taken its step back.
        self._sent: dict[_Broadcast, dict[_Part | None, int | bool | None]] = {}
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
                        rank.parameters[key] = _Parameter(TensorRef(parameter), name, event.index, parameter.numel())
            rank.runs.clear()
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
            if parameter is not None:
                self._on_parameter(rank, parameter, event.root, work)
            elif tensor.is_floating_point():
                self._on_copy(rank, tensor, event.root, work)

    def _on_parameter(self, rank: _Rank, parameter: _Parameter, root: int, work: SimWork) -> None:
        if not parameter.watched:
            self._watch(rank, parameter)
        back = parameter.before is not None and bits_of(parameter.tensor()) == parameter.before
        if work.member.rank == root:
            if back:
                self._note_sent(work, {None: True})
        elif back:
            parameter.before = None  # the program itself has taken the step back
        else:
            parameter.received = self._received(work, root, None)

    def _on_copy(self, rank: _Rank, tensor: Tensor, root: int, work: SimWork) -> None:
        """Note a broadcast of what may be a flat copy of parameters."""
        elements = tensor.numel()
        runs = rank.runs.get(elements)
        if runs is None:
            if len(rank.runs) >= _MOST_SIZES:
                rank.runs.clear()
            runs = rank.runs[elements] = _runs([*rank.parameters.values()], elements)
        for run in runs:
            begin = 0
            for parameter in run:
                part = begin, parameter.elements
                begin += parameter.elements
                self._parts.setdefault(elements, {})[part] = None
                if not parameter.watched:
                    self._watch(rank, parameter)
                if work.member.rank != root and parameter.before is not None:
                    if bits_of(parameter.tensor()) == parameter.before:
                        parameter.before = None
                    else:
                        parameter.in_copies.append(self._received(work, root, part))
        if work.member.rank == root and elements in self._parts:
            parts = [*self._parts[elements]]
            taken_back = {each.before for each in rank.watched if each.before is not None}
            sent = zip(parts, bits_of_parts(tensor, parts), strict=True)
            self._note_sent(work, {part: True if bits in taken_back else bits for part, bits in sent})

    def _received(self, work: SimWork, root: int, part: _Part | None) -> _Received:
        group = work.member.communicator
        moment = self._hearing.moment(work.process, site_of(sys._getframe(1)))
        return _Received((group, work.sequence), part, group.world_ranks[root], moment)

    def _note_sent(self, work: SimWork, sent: dict[_Part | None, int | bool | None]) -> None:
        if len(self._sent) >= _MOST_SENT:
            del self._sent[next(iter(self._sent))]
        self._sent[work.member.communicator, work.sequence] = sent

    def _on_backward(self, event: BackwardCalled) -> None:
        rank = self._of(event.process)
        if rank is not None:
            self._look(rank)

    def _look(self, rank: _Rank) -> None:
        """Look whether the broadcasts since the last step have brought values from before it."""
        for each in rank.watched:
            received, each.received = each.received, None
            in_copies, each.in_copies = each.in_copies, []
            if (received is None and not in_copies) or self._found:
                continue
            before, each.before = each.before, None
            if before is None or bits_of(each.tensor()) != before:
                continue
            for one in (received, *reversed(in_copies)):
                if one is not None and self._has_sent(one, before):
                    self._report(each, one)
                    break

    def _has_sent(self, received: _Received, before: int) -> bool:
        """True if a source has sent the value from before the step, and has not taken the step back itself."""
        sent = self._sent.get(received.broadcast, {}).get(received.part)
        return sent is not True and (received.part is None or sent == before)

    def _report(self, parameter: _Parameter, received: _Received) -> None:
        self._found = True
        source, rank = received.source, received.moment.rank
        what = "the broadcast" if received.part is None else "the broadcast of a copy"
        self._hearing.find(
            f"optimizer step {parameter.step} of {parameter.name} is undone: {what} from rank {source} has the value "
            "from before the step",
            received.moment,
            subject=parameter.name,
            step=parameter.step,
            notes=[f"rank {source} does not train it: broadcast it from rank {rank}, which does"],
        )


def _runs(parameters: Sequence[_Parameter], elements: int) -> list[list[_Parameter]]:
    """Return the first runs of successive parameters of one optimizer that have so many elements together."""
    found: list[list[_Parameter]] = []
    run: list[_Parameter] = []
    total = 0
    for parameter in parameters:
        if run and run[0].optimizer != parameter.optimizer:
            run, total = [], 0
        run.append(parameter)
        total += parameter.elements
        while total > elements:
            total -= run.pop(0).elements
        if total == elements and run and len(found) < _MOST_RUNS:
            found.append([*run])
    return found
