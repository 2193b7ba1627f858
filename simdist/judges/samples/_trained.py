"""Whether an optimizer trains a model in DDP over all ranks, whose ranks are meant to read different samples.

A program may also train another model on each rank for itself, as a reference or a warm-up, with all samples.

In doubt: an optimizer may step copies of a model's parameters. So until an optimizer of the rank has stepped parameters
of a model in DDP themselves, each optimizer counts as one that trains it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simdist.judges._events import ModelWrapped, OptimizerStepped
from simdist.judges._judge import Hearing
from simdist.judges._models import WrappedModel, wrapped_model

__all__ = ["Trained"]


@dataclass(slots=True)
class _Rank:
    """The models in DDP over all ranks of one rank in one life."""

    models: list[WrappedModel] = field(default_factory=list)
    stepped: bool = False  # an optimizer has stepped parameters of one of them


class Trained:
    """The models in DDP over all ranks in one world."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank

    def on_model(self, event: ModelWrapped) -> None:
        """Note a model in DDP over all ranks."""
        group = event.model.process_group
        if group is not None and group.size() == self._hearing.world_size > 1:
            models = self._ranks.setdefault((event.process.life, event.process.rank), _Rank()).models
            models.append(wrapped_model(event, len(models)))

    def by(self, event: OptimizerStepped) -> bool:
        """True if the optimizer trains such a model."""
        rank = self._ranks.get((event.process.life, event.process.rank))
        if rank is None:
            return False
        rank.models = [model for model in rank.models if model.model() is not None]
        for group in event.optimizer.param_groups:
            for parameter in group["params"]:
                if any(model.name_of(parameter) is not None for model in rank.models):
                    rank.stepped = True
                    return True
        return not rank.stepped
