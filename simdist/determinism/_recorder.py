"""Records a run while it happens in this process."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from simdist.c10d import PayloadSampled
from simdist.determinism._describe import describe
from simdist.determinism._lines import Budget, LineTrace, trace_lines
from simdist.determinism._recording import MAIN, Noted, Recording, WorldRecord
from simdist.determinism._surroundings import looked_at, shaken
from simdist.frames import Line, is_user_file, user_frame
from simdist.kernel import Bus
from simdist.process import RankBegan, current_process
from simdist.records import (
    Completed,
    Delayed,
    Failed,
    FaultReported,
    Issued,
    Printed,
    ProgramStarted,
    Record,
    Slept,
    StepBegun,
    StoreAsked,
)
from simdist.world import WorldEnded, observed_by

__all__ = ["record", "recording"]

_ON_RANK = (
    Issued,
    Slept,
    Delayed,
    StepBegun,
    StoreAsked,
    Printed,
    ProgramStarted,
    FaultReported,
)  # made by the rank's own thread


class _Recorder:
    """An observer of worlds."""

    def __init__(self, into: Recording, *, lines: bool) -> None:
        self._into = into
        self._lines = lines
        self._budget = Budget()
        self._whole: list[int] = []
        self._issued: dict[tuple[Any, ...], tuple[Line | None, int]] = {}

    def world_begins(self, bus: Bus) -> None:
        world = WorldRecord()
        self._into.worlds.append(world)
        self._issued.clear()
        beside = {thread.name for thread in threading.enumerate() if thread is not threading.current_thread()}
        self._into.threads = tuple(sorted(beside | set(self._into.threads)))
        bus.listen(Record, lambda record: self._note(world, record))
        bus.listen(PayloadSampled, lambda event: self._whole.append(event.crc))
        if self._lines:
            bus.listen(RankBegan, self._on_rank)
        bus.listen(WorldEnded, self._on_end)

    def _on_rank(self, event: RankBegan) -> None:
        trace = LineTrace()
        self._into.traces[len(self._into.worlds) - 1, event.process.rank, event.process.life] = trace
        trace_lines(trace, self._budget)

    def _on_end(self, event: WorldEnded) -> None:
        world = self._into.worlds[-1]
        world.digest = event.result.digest
        world.values = [describe(rank.value) for rank in event.result.ranks]

    def _note(self, world: WorldRecord, record: Record) -> None:
        noted = Noted(record)
        process = current_process()
        if process is not None and record.rank == process.rank and isinstance(record, _ON_RANK):
            frame = user_frame(sys._getframe(1))
            if frame is not None:
                noted.site = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            trace = self._into.traces.get((len(self._into.worlds) - 1, record.rank, process.life))
            noted.step = -1 if trace is None else len(trace.steps)
        if isinstance(record, Printed):
            noted.is_warning = _from_warnings(sys._getframe(1))
        elif isinstance(record, Issued):
            self._issued[record.rank, record.group, record.op, record.seq] = noted.site, noted.step
        elif isinstance(record, Completed | Failed):
            if record.rank >= 0:
                key = (record.rank, record.group, record.op, record.seq)
                noted.site, noted.step = self._issued.get(key, (None, -1))
            noted.whole = tuple(self._whole)
            self._whole.clear()
        world.events.append(noted)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record everything that happens inside."""
        with ExitStack() as stack:
            stack.enter_context(looked_at(self._into.seen))
            stack.enter_context(observed_by(self))
            if self._lines:
                self._into.traces[MAIN] = trace = LineTrace()
                stack.callback(trace_lines(trace, self._budget))
            yield


_WARNINGS = warnings.WarningMessage.__init__.__code__.co_filename  # from Python 3.14 on not the module's own file


def _from_warnings(frame: FrameType | None) -> bool:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename == _WARNINGS:
            return True
        frame = frame.f_back
    return False


@contextmanager
def recording(*, lines: bool = False, shake: bool = False) -> Iterator[Recording]:
    """Record the worlds that run inside; `lines` also traces the user's code line by line.

    `shake` changes what is not guaranteed: the order of folders, and when the garbage collector runs.
    """
    found = Recording(hash_seed=os.environ.get("PYTHONHASHSEED", "random"))
    with ExitStack() as stack:
        if shake:
            stack.enter_context(shaken())
        with _Recorder(found, lines=lines).watching():
            yield found


def record(call: Callable[[], object], *, lines: bool = False, shake: bool = False) -> Recording:
    """Call `call` and record what it does; an error that it raises goes into the recording."""
    with recording(lines=lines, shake=shake) as found:
        try:
            call()
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}"
    return found
