"""Finds the lines of the program that run after a fault: where it recovers, and where it does not.

From the first fault on, each line of the user's files counts once. Python 3.12 and later report a line once and are
then asked not to (`sys.monitoring`), so that this costs next to nothing. Before that, ranks run under `sys.settrace`,
which costs a little for each call; a thread that has another trace function is left alone.

Doubt: under Python 3.11 lines of threads that a rank starts do not count.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

from simdist.frames import frames_by_thread, is_user_file
from simdist.kernel import Bus
from simdist.process import RankBegan, current_process, original
from simdist.records import FaultReported
from simdist.world import WorldEnded

__all__ = ["LinesAfterFaults"]

_NAME = "simdist looks for new lines"


class LinesAfterFaults:
    """An observer of one world. `passed` has lines, "train.py:12", each with the kind of the last fault before it."""

    def __init__(self) -> None:
        self.passed: set[tuple[str, str]] = set()
        self._struck = ""
        self._tool = -1

    def world_begins(self, bus: Bus) -> None:
        """Wait for the first fault."""
        bus.listen(FaultReported, self._on_fault)
        bus.listen(WorldEnded, lambda _: self.end())
        if sys.version_info < (3, 12):
            bus.listen(RankBegan, lambda _: _trace(self._on_call))

    def _on_fault(self, record: FaultReported) -> None:
        first, self._struck = not self._struck, record.fault
        if first:
            self._begin()

    def _note(self, file: str, line: int) -> None:
        self.passed.add((f"{PurePath(file).name}:{line}", self._struck))

    if sys.version_info >= (3, 12):

        def _begin(self) -> None:
            # A rank's thread may call this, and the tool is none of the rank's.
            monitoring = sys.monitoring
            free = [each for each in range(6) if original(monitoring.get_tool)(each) is None]
            if not free:
                return
            self._tool = free[-1]
            original(monitoring.use_tool_id)(self._tool, _NAME)
            original(monitoring.register_callback)(self._tool, monitoring.events.LINE, self._on_line)
            original(monitoring.restart_events)()
            original(monitoring.set_events)(self._tool, monitoring.events.LINE)

        def _on_line(self, code: CodeType, line: int) -> object:
            if is_user_file(code.co_filename):
                if current_process() is None:  # a thread of the host, which runs whenever it likes
                    return None
                self._note(code.co_filename, line)
            return sys.monitoring.DISABLE

        def end(self) -> None:
            """Stop watching."""
            if self._tool >= 0:
                original(sys.monitoring.set_events)(self._tool, 0)
                original(sys.monitoring.register_callback)(self._tool, sys.monitoring.events.LINE, None)
                original(sys.monitoring.free_tool_id)(self._tool)
                self._tool = -1

    else:

        def _begin(self) -> None:
            for frame in frames_by_thread().values():  # of traced threads; on others it has no effect
                within: FrameType | None = frame
                while within is not None:
                    if is_user_file(within.f_code.co_filename) and within.f_trace is None:
                        within.f_trace = self._on_line
                    within = within.f_back

        def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
            return self._on_line if self._struck and is_user_file(frame.f_code.co_filename) else None

        def _on_line(self, frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                self._note(frame.f_code.co_filename, frame.f_lineno)
            return self._on_line

        def end(self) -> None:
            """Stop watching: the threads of ranks end, or stop at the next line."""
            self._struck = ""


def _trace(hook: Any) -> None:
    """Trace the calling thread, unless it has a trace function."""
    if sys.gettrace() is None:
        sys.settrace(hook)
