"""The host's thread while the world runs: it waits, reports progress, and is the safety net under tasks that block.

A task that keeps the baton is either *blocked*, in a call that the simulation does not know: its thread uses no
processor time, nor do programs that it has started, such as compilers; the limit for that is `stall_s`. Or it
*computes*: that is no fault, and the limit is ten times as long. `_lock_watch` handles code that holds the GIL.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simdist.errors import StallError
from simdist.kernel._lock_watch import LockWatch, named

if TYPE_CHECKING:
    from simdist.kernel._simulation import Simulation
    from simdist.kernel._task import Task

__all__ = ["Watchdog", "processor_seconds"]

# The watchdog is the one part that must know real time, also inside a world where `time` is virtual.
_real_seconds = time.monotonic  # noqa: TID251
_read_clock: Callable[[int], float] | None = getattr(time, "clock_gettime", None) if sys.platform == "linux" else None

_COMPUTING = 10  # times `stall_s` that a task may compute
_SHARE = 0.01  # of a processor: from this share on a thread computes


class Watchdog:
    """Waits for the end of one world."""

    def __init__(self, stall_s: float, progress: Callable[[int, int], None] | None) -> None:
        self._stall_s = stall_s
        self._progress = progress
        self._lock_watch = LockWatch(stall_s)
        self._turns = 0
        self._since = 0.0  # real time of the last turn that was noticed
        self._idle_since = 0.0  # since when its thread uses no processor time
        self._looked = (0.0, 0.0)  # the time of the last look, and the thread's processor time then

    def wait(self, simulation: Simulation) -> None:
        """Return when the world is over.

        Raises:
            StallError: a task has kept the baton for too long.
            BaseException: an error of `progress`.
        """
        self._lock_watch.arm()
        try:
            self._restart(simulation, 0.0)
            tick = 0.1 if self._progress is not None else min(1.0, max(0.05, self._stall_s / 10))
            acquire = _waiting(self._lock_watch.limit_s, self._lock_watch.repeat_s)
            while not acquire(simulation._host_acquire, tick):
                if self._progress is not None:
                    self._lock_watch.pause()
                    self._progress(simulation.now_ns, len(simulation.events))
                self._lock_watch.postpone()
                if simulation.turns != self._turns or not simulation.watched:
                    used_s = 0.0 if simulation.current is None else _all_processor_seconds(simulation.current)
                    self._restart(simulation, used_s)
                else:
                    self._require_life(simulation)
        finally:
            self._lock_watch.disarm()

    def stop(self) -> None:
        """Stop watching, in a forked child."""
        self._lock_watch.disarm()

    def _restart(self, simulation: Simulation, used_s: float) -> None:
        self._turns = simulation.turns
        self._since = self._idle_since = _real_seconds()
        self._looked = (self._since, used_s)

    def _require_life(self, simulation: Simulation) -> None:
        task = simulation.current
        assert task is not None
        (before, used_before), (now, used) = self._looked, (_real_seconds(), _all_processor_seconds(task))
        self._looked = (now, used)
        if abs(used - used_before) >= _SHARE * (now - before):
            self._idle_since = now
        blocked = now - self._idle_since > self._stall_s
        if blocked or now - self._since > _COMPUTING * self._stall_s:
            frame = sys._current_frames().get(task.ident)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no Python frame)\n"
            raise StallError(task.name, round(now - self._since, 1), stack, self._stall_s, not blocked)


def processor_seconds(task: Task) -> float:
    """The processor time of the task's thread; 0 if the system does not report it, or the thread is gone."""
    if _read_clock is None or not task.native_ident:
        return 0.0
    try:
        # Linux's number of the thread's clock. `pthread_getcpuclockid` reads it from the thread's memory, and crashes
        # if the thread ends meanwhile; with the number, the kernel refuses.
        return _read_clock(8 * ~task.native_ident + 6)
    except OSError:
        return 0.0


def _all_processor_seconds(task: Task) -> float:
    """The processor time of the task's thread and of the programs that run for it; falls when one of them ends."""
    return processor_seconds(task) + sum(_program_seconds(pid) for pid in _started_by(f"self/task/{task.native_ident}"))


# Taken early: the determinism check notes which files are opened and listed, and these are no part of a run.
_open, _read, _close, _scandir = os.open, os.read, os.close, os.scandir


def _content(path: str) -> str:
    number = _open(path, os.O_RDONLY)
    try:
        return _read(number, 1 << 16).decode()
    finally:
        _close(number)


def _started_by(thread: str) -> list[str]:
    try:
        return _content(f"/proc/{thread}/children").split()  # Linux
    except OSError:
        return []


def _program_seconds(pid: str) -> float:
    try:
        words = _content(f"/proc/{pid}/stat").rpartition(")")[2].split()
        with _scandir(f"/proc/{pid}/task") as entries:
            threads = [each.name for each in entries]
    except OSError:
        return 0.0
    own = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")  # with those of its programs that have ended
    return own + sum(_program_seconds(each) for thread in threads for each in _started_by(f"{pid}/task/{thread}"))


def _acquire(acquire: Any, tick: float) -> Any:
    return acquire(timeout=tick)


@functools.lru_cache(maxsize=8)
def _waiting(limit_s: float, repeat_s: int) -> Any:
    return named(
        _acquire,
        f"simdist: a rank has kept the GIL for {limit_s:g} s of real time, so that nothing else of this process "
        f"could run, and the process ends unless it gives the lock back within {repeat_s} s; its line stands in the "
        "stack that ends with its name; a rank that needs longer gets it with a larger stall_s",
    )
