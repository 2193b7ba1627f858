"""Steps and loads that change nothing, without an error.

Optimizers may step parameters without gradients, while the losses have gradients for other parameters. `fully_shard`,
or a copy, replaces the parameters of a model. An optimizer that was made before steps the old ones: nothing is raised,
and the model stays as it was. A `zero_grad` between the backward pass and the step has the same effect.

A rank is watched until one of its optimizers steps with a gradient, or changes a parameter. Some compute gradients
inside a step, so gradients are looked for at both ends.

`load_state_dict(strict=False)` may load nothing, because every name has a prefix such as "module." on one side only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simdist.inside.torch import TensorRef
from simdist.judges._bits import bits_of_each
from simdist.judges._events import BackwardCalled, OptimizerBegins, OptimizerStepped, StateLoaded
from simdist.judges._judge import Hearing
from simdist.judges.replicas._leaves import leaves_of
from simdist.process import SimProcess

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Untrained"]


@dataclass(slots=True)
class _Rank:
    settled: bool = False
    before: Sequence[int] = ()  # the bits of parameters when the step began
    # For which tensors losses have gradients since the step before; None until a step has changed nothing: a first
    # one may only make an optimizer's state.
    leaves: Sequence[TensorRef] | None = None


class Untrained:
    """Watches one world. Hot: it costs nothing after a rank's first step with a gradient."""

    def __init__(self, hearing: Hearing) -> None:
        self._hearing = hearing
        self._ranks: dict[tuple[int, int], _Rank] = {}  # by life and rank
        self._found = False
        hearing.listen(BackwardCalled, self.on_backward)
        hearing.listen(OptimizerBegins, self.on_begin)
        hearing.listen(OptimizerStepped, self.on_step)
        hearing.listen(StateLoaded, self.on_load)

    def on_load(self, event: StateLoaded) -> None:
        """Report a state dict of which nothing was loaded, though it has something."""
        if (
            not event.missing
            or not event.unexpected
            or self._found
            or not event.model.state_dict().keys() <= {*event.missing}
        ):
            return
        self._found = True
        here, there = event.missing[0], event.unexpected[0]
        shorter, longer = sorted((here, there), key=len)
        notes = [f"the model has {here!r}, the state dict {there!r}"]
        if longer.endswith(shorter):
            side = "the state dict's" if longer == there else "the model's"
            notes = [f"{side} names begin with {longer.removesuffix(shorter)!r}"]
        self._hearing.find(
            f"load_state_dict loaded nothing: none of the {len(event.missing)} names of the model is in the state dict",
            self._hearing.moment(event.process, event.where),
            subject=type(event.model).__name__,
            notes=notes,
        )

    def on_backward(self, event: BackwardCalled) -> None:
        """Note for which parameters a loss has gradients."""
        rank = self._rank(event.process)
        if rank.leaves is not None and not rank.settled:
            rank.leaves = [*rank.leaves, *map(TensorRef, leaves_of(event.tensors, event.edges))]

    def on_begin(self, event: OptimizerBegins) -> None:
        """Look for gradients before a step."""
        rank = self._rank(event.process)
        if not rank.settled:
            parameters = _parameters(event)
            rank.settled = any(each.grad is not None for each in parameters)
            rank.before = () if rank.settled else _bits(parameters)

    def on_step(self, event: OptimizerStepped) -> None:
        """Report an optimizer that changes nothing, step after step."""
        rank = self._rank(event.process)
        if rank.settled:
            return
        parameters = _parameters(event)
        rank.settled = any(each.grad is not None for each in parameters) or _bits(parameters) != rank.before
        trained = [leaf for ref in rank.leaves or () if (leaf := ref()) is not None]
        rank.leaves = ()
        if not trained or not parameters or rank.settled or self._found:
            return
        self._found = True
        if any(leaf is each for leaf in trained for each in parameters):
            why = "its parameters have no gradients any more"
            note = "the losses have gradients for them: is zero_grad called between the backward pass and the step?"
        else:
            why = "no parameter of the optimizer has a gradient"
            note = (
                "the losses have gradients for other parameters: was the optimizer made before fully_shard, or for "
                "another copy of the model?"
            )
        self._hearing.find(
            f"optimizer step {event.number} changed nothing: {why}",
            self._hearing.moment(event.process, event.where),
            subject=type(event.optimizer).__name__,
            step=event.number,
            notes=[note],
        )

    def _rank(self, process: SimProcess) -> _Rank:
        who = process.life, process.rank
        rank = self._ranks.get(who)
        if rank is None:
            rank = self._ranks[who] = _Rank()
        return rank


def _parameters(event: OptimizerBegins | OptimizerStepped) -> list[Tensor]:
    """Return the parameters that may have a gradient here: not those that are frozen, nor empty shards."""
    found: list[Tensor] = [each for group in event.optimizer.param_groups for each in group["params"]]
    return [each for each in found if each.requires_grad and each.numel()]


def _bits(parameters: Sequence[Tensor]) -> list[int]:
    """Return the bits of each parameter; of one that is not there yet, how often it was changed."""
    found = zip(bits_of_each(parameters), parameters, strict=True)
    return [each._version if bits is None else bits for bits, each in found]
