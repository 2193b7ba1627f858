"""From where each operation was called."""

from __future__ import annotations

import sys
from typing import Any

from simdist._observer import Observer
from simdist.frames import Line, is_ours
from simdist.kernel import Simulation

__all__ = ["CallStacks"]

_DEEP = 48


class CallStacks(Observer):
    """The stack of every call of an operation, without the frames of simdist.

    Example:
        >>> with observed_by(CallStacks()) as stacks:
        ...     result = simdist.run(train, world_size=4)
    """

    def __init__(self) -> None:
        self.frames: dict[tuple[int, int, str, str, str], list[Line]] = {}

    def world_begins(self, simulation: Simulation) -> None:
        """Watch its events."""
        simulation.events.watch(self._on_record)

    def _on_record(self, record: tuple[Any, ...]) -> None:
        if record[1] != "issue":
            return
        time_ns, _, rank, operation, group, sequence = record[:6]
        stack: list[Line] = []
        frame = sys._getframe(1)
        while frame is not None and len(stack) < _DEEP:
            if not is_ours(frame):
                stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back  # type: ignore[assignment]
        self.frames[time_ns, rank, group, operation, str(sequence)] = stack
