"""Records of a training's steps on each rank and in each life, made by a judge without findings.

A step is an optimizer step. Its record has everything that went into it since the step before. Tensors are kept as
checksums.
"""

from __future__ import annotations

import random
import signal
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from simdist.judges._bits import bits_inside, bits_of
from simdist.judges._events import BackwardCalled, BatchRead, OptimizerBegins, OptimizerStepped
from simdist.judges._judge import Hearing, Judge
from simdist.judges._parameter_names import name_in_group, names_in_frames
from simdist.process import SimProcess

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Step", "Trails"]


@dataclass(slots=True)
class Step:
    """One optimizer step of one rank: its inputs and results. Bits are checksums of elements."""

    where: str
    options: Mapping[str, object]  # of the optimizer's groups, by group and name
    state: Mapping[str, int | float | None]  # of the optimizer before the step: bits by parameter and name
    before: Mapping[str, int | None]  # of parameters: bits by name
    batches: list[tuple[int | None, ...]]  # batches read since the last step
    losses: list[tuple[int | None, ...]]  # losses of backward passes since the last step
    said: list[float]  # the losses as numbers
    generators: Mapping[str, object]
    after: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Since:
    """A rank's batches and losses since its last step."""

    batches: list[tuple[int | None, ...]] = field(default_factory=list)
    losses: list[tuple[int | None, ...]] = field(default_factory=list)
    said: list[float] = field(default_factory=list)


class Trails(Judge):
    """Records the steps of one world; with `crash_at`, kills rank 0 before this step of its first life."""

    name: ClassVar[str] = "trails"
    compares_values: ClassVar[bool] = True

    def __init__(self, crash_at: int | None = None) -> None:
        self.steps: dict[tuple[int, int], list[Step]] = {}  # by life and rank
        self.crashed = False
        self._crash_at = crash_at
        self._since: dict[tuple[int, int], _Since] = {}

    def begin(self, hearing: Hearing) -> None:
        """Listen to losses, batches and steps."""
        hearing.listen(BackwardCalled, self._on_backward)
        hearing.listen(BatchRead, self._on_batch)
        hearing.listen(OptimizerBegins, self._on_begin)
        hearing.listen(OptimizerStepped, self._on_step)

    def _on_backward(self, event: BackwardCalled) -> None:
        since = self._since_last(event.process)
        since.losses.append(tuple(map(bits_of, event.tensors)))
        since.said += [_number(tensor) for tensor in event.tensors]

    def _on_batch(self, event: BatchRead) -> None:
        self._since_last(event.process).batches.append(tuple(bits_inside(event.batch)))

    def _on_begin(self, event: OptimizerBegins) -> None:
        process, optimizer = event.process, event.optimizer
        place = process.life, process.rank
        steps = self.steps.setdefault(place, [])
        if self._crash_at == len(steps) and place == (0, 0):
            self.crashed = True
            process.kill(signal.SIGKILL)
        since = self._since.pop(place, _Since())
        names = names_in_frames(sys._getframe(1))
        known = dict(_named(optimizer, names))
        steps.append(
            Step(
                where=event.where,
                options={
                    f"group {index}: {key}" if len(optimizer.param_groups) > 1 else key: _plain(value)
                    for index, group in enumerate(optimizer.param_groups)
                    for key, value in group.items()
                    if key not in ("params", "param_names")
                },
                state={
                    f"{key} of {name}": bits_of(value) if isinstance(value, torch.Tensor) else value
                    for name, parameter in known.items()
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if isinstance(value, torch.Tensor | int | float)
                },
                before={name: bits_of(parameter) for name, parameter in known.items()},
                batches=since.batches,
                losses=since.losses,
                said=since.said,
                generators={
                    "torch": bits_of(torch.get_rng_state()),
                    "numpy": _numpy_state(),
                    "random": zlib.crc32(str(random.getstate()).encode()),
                },
            )
        )

    def _on_step(self, event: OptimizerStepped) -> None:
        steps = self.steps.get((event.process.life, event.process.rank))
        if steps:
            names = names_in_frames(sys._getframe(1))
            steps[-1].after = {name: bits_of(parameter) for name, parameter in _named(event.optimizer, names)}

    def _since_last(self, process: SimProcess) -> _Since:
        return self._since.setdefault((process.life, process.rank), _Since())


def _named(optimizer: Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for place, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield name_in_group(group, place, index, names), parameter


def _plain(value: object) -> object:
    return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _number(tensor: torch.Tensor) -> float:
    return float(tensor.detach().sum()) if not tensor.is_cuda else float("nan")


def _numpy_state() -> int:
    kind, keys, *rest = np.random.get_state()  # the global generator is what programs restore
    return zlib.crc32(np.asarray(keys).tobytes() + str((kind, *rest)).encode())
