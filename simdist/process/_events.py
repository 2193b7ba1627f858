"""What a process announces before it goes on, and tells of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simdist.process._process import SimProcess

__all__ = ["PointReached", "RankBegan", "StepReached"]


@dataclass(frozen=True, slots=True)
class StepReached:
    """Announced: a rank's program says that a training step begins (`simdist.step`)."""

    process: SimProcess
    step: int


@dataclass(frozen=True, slots=True)
class PointReached:
    """Announced: a rank's program passes a place that it names (`simdist.point`)."""

    process: SimProcess
    name: str


@dataclass(frozen=True, slots=True)
class RankBegan:
    """Told: a rank is about to call the user's function; on the rank's own thread."""

    process: SimProcess
