"""Models in `DistributedDataParallel`: their parameters, with names, and their ranks."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from simdist.inside.torch import TensorRef, group_world
from simdist.judges._events import ModelWrapped

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    from simdist.c10d.engine import Communicator
    from simdist.process import SimProcess

__all__ = ["Modes", "WrappedModel", "wrapped_model"]

Modes = tuple[bool | None, ...]
"""For each module of a model, True in training mode, False in evaluation mode, None if it is gone."""


@dataclass(frozen=True, slots=True)
class WrappedModel:
    """A model in DDP, on one rank. It keeps neither the model nor its parameters."""

    model: weakref.ref[DistributedDataParallel]
    number: int  # among the rank's models
    ranks: tuple[int, ...]
    names: dict[int, tuple[TensorRef, str]]  # by the parameter's id, for the parameters that DDP handles
    modules: dict[weakref.ref[Module], str]  # with their names; the model itself has an empty name

    def name_of(self, parameter: object) -> str | None:
        """Return a parameter's name in the model; None if it is not in the model, or DDP ignores it."""
        known = self.names.get(id(parameter))
        return None if known is None or known[0]() is not parameter else known[1]

    def elements(self) -> int:
        """Return how many elements its gradients have."""
        found = [parameter() for parameter, _ in self.names.values()]
        return sum(each.numel() for each in found if each is not None and each.requires_grad)

    def modes(self) -> Modes:
        """Return the current modes of its modules."""
        try:
            return tuple([module().training for module in self.modules])  # type: ignore[union-attr]  # hot
        except AttributeError:
            return tuple([getattr(module(), "training", None) for module in self.modules])

    def averages(self) -> bool:
        """True if DDP would average gradients in a backward pass now: not in `no_sync`, and without a hook."""
        model = self.model()
        return model is not None and model.require_backward_grad_sync and not model._comm_hooks

    def has_no_hook(self) -> bool:
        """True without a communication hook, which might average later, or never."""
        model = self.model()
        return model is None or not model._comm_hooks

    def joins(self) -> bool:
        """True inside DDP's `join`, in which ranks may take different numbers of steps."""
        model = self.model()
        return model is not None and bool(model._join_config.enable)


def wrapped_model(event: ModelWrapped, number: int) -> WrappedModel:
    """Return the facts about a model at the moment when it is wrapped."""
    model = event.model
    ignored = set(model.parameters_to_ignore)
    names = {
        id(parameter): (TensorRef(parameter), name)
        for name, parameter in model.module.named_parameters()
        if name not in ignored
    }
    modules = {weakref.ref(module): name for name, module in model.module.named_modules()}
    return WrappedModel(weakref.ref(model), number, _ranks_of(model.process_group, event.process), names, modules)


def _ranks_of(group: dist.ProcessGroup, process: SimProcess) -> tuple[int, ...]:
    """Return the ranks of a group; only the process's own rank if neither torch nor the simulation made the group."""
    if group in group_world().pg_group_ranks:
        return tuple(dist.get_process_group_ranks(group))
    communicator: Communicator | None = getattr(group, "_communicator", None)
    return (process.rank,) if communicator is None else tuple(dict.fromkeys(communicator.world_ranks))
