"""The events of a program that judges listen to: steps of optimizers, wrapped models, samples from loaders.

They go over the bus like all other events, and are made only while a judge listens to their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from simdist.process import SimProcess

if TYPE_CHECKING:
    import torch
    from torch.autograd.graph import GradientEdge
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

__all__ = ["BackwardCalled", "BatchDrawn", "BatchRead", "FileUsed", "LoaderBegan", "LoaderEnded", "ModelWrapped"]
__all__ += ["OptimizerBegins", "OptimizerStepped", "StateLoaded", "WorkerReady"]


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class OptimizerBegins:
    """Reported: a rank is about to take an optimizer's step `number`, counted from 0.

    `index` counts the optimizers of the rank, in the order of their first steps. An optimizer that steps inside
    another's step is a part of it, and not reported. `where` is the line of the program.
    """

    process: SimProcess
    optimizer: Optimizer
    index: int
    number: int
    where: str


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class OptimizerStepped:
    """Reported: an optimizer's step is done. The fields are those of `OptimizerBegins`."""

    process: SimProcess
    optimizer: Optimizer
    index: int
    number: int
    where: str


@dataclass(slots=True, unsafe_hash=True)  # hot, so not frozen (see `Bus`)
class BackwardCalled:
    """Reported: a rank is about to start a backward pass from these tensors, such as its loss, or from graph edges."""

    process: SimProcess
    tensors: Sequence[torch.Tensor]
    where: str
    edges: Sequence[GradientEdge] = ()


@dataclass(frozen=True, slots=True)
class ModelWrapped:
    """Reported: a rank has made a `DistributedDataParallel`."""

    process: SimProcess
    model: DistributedDataParallel
    where: str


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """Reported: a rank has called a module's `load_state_dict`, which returned these missing and unexpected keys."""

    process: SimProcess
    model: Module
    missing: Sequence[str]
    unexpected: Sequence[str]
    where: str


@dataclass(frozen=True, slots=True)
class FileUsed:
    """Reported: a rank, or a child process of it, has used the file at the absolute `path`, under the name `name`.

    `use` is the kind: the file was opened ("open" changes nothing yet, "create" makes it exclusively, or makes a
    folder), renamed from `path` to `to`, removed, looked for ("seen", or "missed": it was not there), or locked; for a
    lock, `path` identifies the file independently of its name. So does `to` of a write that found the file empty.
    """

    process: SimProcess
    use: Literal["read", "write", "append", "open", "create", "rename", "remove", "seen", "missed", "lock"]
    path: str
    name: str
    to: str
    where: str


@dataclass(frozen=True, slots=True)
class LoaderBegan:
    """Reported: a rank begins to iterate over a `DataLoader`.

    `number` counts the rank's iterations, and identifies this one in later events.
    """

    process: SimProcess
    loader: DataLoader[object]
    number: int
    where: str


@dataclass(frozen=True, slots=True)
class BatchDrawn:
    """Reported: the sampler of a loader has returned the indices of the next batch."""

    process: SimProcess
    number: int
    indices: Sequence[Any]


@dataclass(frozen=True, slots=True)
class BatchRead:
    """Reported: a rank has received a batch from a loader.

    `seed` is that of the loader's workers, if it has some: worker n has this one plus n.
    """

    process: SimProcess
    number: int
    batch: Any
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Reported: a worker of a rank's loader is about to wait for the indices of a batch, first or next.

    `process` is the rank. Its worker has number `worker` of `workers`, the seed `seed`, and a copy of the data set.
    """

    process: SimProcess
    worker: int
    workers: int
    seed: int
    dataset: Any


@dataclass(frozen=True, slots=True)
class LoaderEnded:
    """Reported: a rank has asked a loader for another batch after the last one."""

    process: SimProcess
    number: int
