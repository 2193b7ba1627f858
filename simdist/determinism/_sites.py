"""The call stack of each operation."""

from __future__ import annotations

import sys

from simdist.frames import Line, is_ours
from simdist.kernel import Bus
from simdist.records import Issued

__all__ = ["CallStacks"]

_DEEP = 48


class CallStacks:
    """An observer of worlds: the stack of every call of an operation, without the frames of simdist.

    Example:
        >>> with observed_by(CallStacks()) as stacks:
        ...     result = simdist.run(train, world_size=4)
    """

    def __init__(self) -> None:
        self.frames: dict[tuple[int, int, str, str, str], list[Line]] = {}

    def world_begins(self, bus: Bus) -> None:
        """Listen to its operations."""
        bus.listen(Issued, self._on_issue)

    def _on_issue(self, record: Issued) -> None:
        stack: list[Line] = []
        frame = sys._getframe(1)
        while frame is not None and len(stack) < _DEEP:
            if not is_ours(frame):
                stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back  # type: ignore[assignment]
        self.frames[record.time_ns, record.rank, record.group, record.op, str(record.seq)] = stack
