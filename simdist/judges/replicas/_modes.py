"""The mode of a model's modules, training or evaluation, on ranks that train it together in DDP.

A rank that evaluates alone and does not call `train()` afterwards goes on without dropout, and with frozen statistics
of batch normalization. Its gradients are averaged with those of the others, so nothing else differs.

The mode in the last backward pass before an optimizer step counts. Between a backward pass and the next forward pass a
rank may evaluate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.judges._events import BackwardCalled, ModelWrapped, OptimizerStepped
from simdist.judges._judge import Hearing, Moment
from simdist.judges._models import Modes, WrappedModel, wrapped_model
from simdist.judges.replicas._tables import usual_and_blamed
from simdist.values import rank_text

__all__ = ["EqualModes"]

_MOST_ASKED = 512  # steps that some ranks have still to take; a rank so far behind is left out
_MODES = {True: "training", False: "evaluation"}


@dataclass(slots=True)
class _Mode:
    """The modes of a model on one rank, and its first backward pass in them."""

    modes: Modes
    since: Moment
    # How many steps the rank had taken with each optimizer, by its index; None until the following step.
    taken: dict[int, int] | None = None


@dataclass(slots=True)
class _Rank:
    models: list[WrappedModel] = field(default_factory=list)
    changes: list[list[_Mode]] = field(default_factory=list)  # of each model; the last one may still be before its step
    changed: set[int] = field(default_factory=set)  # numbers of models that changed since the last step
    taken: dict[int, int] = field(default_factory=dict)  # how many steps, by the optimizer's index

    def mode_at(self, number: int, optimizer: int, step: int) -> _Mode | None:
        """Return a model's mode in the backward pass for a step that the rank has taken."""
        for mode in reversed(self.changes[number]):
            if mode.taken is not None and mode.taken.get(optimizer, 0) <= step:
                return mode
        return None


class EqualModes:
    """Watches one world. Hot if nothing changes: a step must cost as little as possible."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        # Steps at which a model's modes changed on some rank, and which other ranks have still to take: the life, the
        # number and the ranks of the model, the index of the optimizer, and the step.
        self._asked: dict[tuple[int, int, tuple[int, ...], int, int], None] = {}
        self._found = False
        hearing.listen(ModelWrapped, self._on_model)
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(OptimizerStepped, self._on_step)

    def _on_model(self, event: ModelWrapped) -> None:
        process = event.process
        rank = self._ranks.setdefault((process.life, process.rank), _Rank())
        rank.models.append(wrapped_model(event, len(rank.models)))
        rank.changes.append([])

    def _on_backward(self, event: BackwardCalled) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is None or self._found:
            return
        for model, changes in zip(rank.models, rank.changes, strict=True):
            modes = model.modes()
            if not changes or changes[-1].modes != modes:
                if changes and changes[-1].taken is None:
                    changes.pop()  # another pass for the same step
                changes.append(_Mode(modes, self._hearing.moment(process, event.where)))
                rank.changed.add(model.number)

    def _on_step(self, event: OptimizerStepped) -> None:
        process = event.process
        rank = self._ranks.get((process.life, process.rank))
        if rank is None or self._found:
            return
        if rank.changed:
            taken = dict(rank.taken)
            for number in sorted(rank.changed):
                rank.changes[number][-1].taken = taken
                if len(self._asked) < _MOST_ASKED:
                    self._asked[process.life, number, rank.models[number].ranks, event.index, event.number] = None
            rank.changed.clear()
        rank.taken[event.index] = event.number + 1
        if self._asked:
            self._answer()

    def _answer(self) -> None:
        """Compare the ranks in steps that all of them have taken."""
        for asked in list(self._asked):
            life, number, members, optimizer, step = asked
            ranks = {member: self._ranks.get((life, member)) for member in members}
            taken = {
                member: rank.mode_at(number, optimizer, step)
                for member, rank in ranks.items()
                if rank is not None and rank.taken.get(optimizer, 0) > step and number < len(rank.models)
            }
            if len(taken) == len(members):
                del self._asked[asked]
                modes = {member: mode for member, mode in taken.items() if mode is not None}
                model = self._ranks[life, members[0]].models[number]
                if len(modes) == len(members) and not self._found:
                    self._compare(model, modes, step)

    def _compare(self, model: WrappedModel, found: dict[int, _Mode], step: int) -> None:
        first, *others = [mode.modes for mode in found.values()]
        if all(modes == first for modes in others) or any(len(modes) != len(first) for modes in others):
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
            f"{rank_text(usual)}, in the backward pass for optimizer step {step}",
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
