"""What the c10d layer announces on the kernel's bus."""

from __future__ import annotations

from dataclasses import dataclass

from simdist.process import SimProcess

__all__ = ["OperationIssued", "PointReached", "StepReached", "StoreRequested"]


@dataclass(frozen=True, slots=True)
class OperationIssued:
    """A rank is about to issue an operation; nobody else has noticed yet."""

    process: SimProcess
    operation: str
    group: str
    sequence: int


@dataclass(frozen=True, slots=True)
class StepReached:
    """A rank's program says that a training step begins (`simdist.step`)."""

    process: SimProcess
    step: int


@dataclass(frozen=True, slots=True)
class PointReached:
    """A rank's program passes a place that it names (`simdist.point`)."""

    process: SimProcess
    name: str


@dataclass(frozen=True, slots=True)
class StoreRequested:
    """A rank asks a store for something, which has not reached it yet; `launchers` is True for the launcher's."""

    process: SimProcess
    operation: str
    key: str
    launchers: bool
