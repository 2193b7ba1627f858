"""What the c10d layer announces on the kernel's bus."""

from __future__ import annotations

from dataclasses import dataclass

from simdist.process import SimProcess

__all__ = ["OperationIssued", "StepReached"]


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
