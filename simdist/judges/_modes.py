"""The mode of a model's modules, training or evaluation, on ranks that train it together in DDP.

A rank that evaluates alone and does not call `train()` afterwards goes on without dropout, and with statistics of batch
normalisation that stand still. Its gradients are averaged with those of the others, so nothing else differs.

What counts is the mode in which a rank goes backward, as of the optimizer's step that follows. Between a backward pass
and the next forward pass a rank may evaluate as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.judges._events import BackwardCalled, ModelWrapped, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges._models import Modes, WrappedModel, wrapped_model
from simdist.judges._replica_tables import usual_and_blamed
from simdist.values import rank_text

__all__ = ["EqualModes"]

_MOST_STEPS = 512  # that some ranks have still to take; who is so far behind takes no part
_MODES = {True: "training", False: "evaluation"}


@dataclass(slots=True)
class _Mode:
    """The modes of a model on one rank, and when it first went backward in them."""

    modes: Modes
    since: Moment


@dataclass(slots=True)
class _Rank:
    models: list[WrappedModel] = field(default_factory=list)
    last: dict[int, _Mode] = field(default_factory=dict)  # by the model's number, when the rank last went backward


class EqualModes:
    """Looks on at one world."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        # By life, the model's number and ranks, the optimizer's index and its step; then by rank.
        self._steps: dict[tuple[object, ...], dict[int, _Mode]] = {}
        self._found = False
        hearing.listen(ModelWrapped, self._on_model)
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(OptimizerStepped, self._on_step)

    def _on_model(self, event: ModelWrapped) -> None:
        process = event.process
        models = self._ranks.setdefault((process.life, process.rank), _Rank()).models
        models.append(wrapped_model(event, len(models)))

    def _on_backward(self, event: BackwardCalled) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is None or self._found:
            return
        for model in rank.models:
            modes, last = model.modes(), rank.last.get(model.number)
            if last is None or last.modes != modes:
                rank.last[model.number] = _Mode(modes, self._hearing.moment(process, event.where))

    def _on_step(self, event: OptimizerStepped) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is None or self._found:
            return
        for number, mode in rank.last.items():
            model = rank.models[number]
            step = (process.life, number, model.ranks, event.index, event.number)
            if step not in self._steps and len(self._steps) >= _MOST_STEPS:
                continue
            modes = self._steps.setdefault(step, {})
            modes[process.rank] = mode
            if len(modes) == len(model.ranks):
                del self._steps[step]
                self._compare(model, modes, event.number)

    def _compare(self, model: WrappedModel, found: dict[int, _Mode], step: int) -> None:
        first, *others = [mode.modes for mode in found.values()]
        if self._found or all(modes == first for modes in others) or any(len(modes) != len(first) for modes in others):
            return
        differing = _first_differing(model, found)
        if differing is None:
            return
        name, modes = differing
        self._found = True
        usual, blamed = usual_and_blamed(modes)
        mine, theirs = _MODES[bool(modes[blamed])], _MODES[bool(modes[usual[0]])]
        self._hearing.find(
            f"{f'module {name}' if name else 'the model'} is in {mine} mode here, and in {theirs} mode on "
            f"{rank_text(usual)}, when optimizer step {step} is prepared",
            found[blamed].since,
            subject=name,
            step=step,
            against=found[usual[0]].since.where,
            notes=["the ranks' gradients are averaged all the same"],
        )


def _first_differing(model: WrappedModel, found: dict[int, _Mode]) -> tuple[str, dict[int, bool | None]] | None:
    for place, name in enumerate(model.modules.values()):
        modes = {rank: mode.modes[place] for rank, mode in found.items()}
        if set(modes.values()) == {True, False}:
            return name, modes
    return None
