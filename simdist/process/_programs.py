"""Programs outside the simulation that a rank started: when they end in virtual time, and what a run says of them.

A program does its work in real time, while virtual time stands still; then it takes the time that the run's settings
give every program (`program_ns`). Whoever waits for it waits until then, and `poll` answers None before. So what a rank
sees of a program's length never depends on the machine.

A signal that would end a process ends a program's virtual time, too. In doubt: one that goes on in spite of it, and has
a code of its own to return, ends at that time all the same; and what had really ended before, is as if it were killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

from simdist.errors import SimdistError
from simdist.frames import is_ours, torch_folder, user_frame
from simdist.kernel import Task
from simdist.process._process import SimProcess
from simdist.process._redirect import original
from simdist.records import program_ended, program_started

__all__ = ["Program", "Programs"]

_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT)
_STANDARD = str(Path(os.__file__).parent) + os.sep
_real_seconds, _sleep = time.monotonic, time.sleep  # noqa: TID251  # a program runs in real time
_PATIENCE_S = 10.0  # real seconds that a program may take beyond its virtual time, where nobody waits for ever


class _End:
    """What a task is parked on that waits for a program."""

    __slots__ = ("name",)
    interruptible = True  # by signals

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self) -> str:
        """In words."""
        return f"wait for the program {self.name!r}"

    def waits_for(self) -> Iterable[Task]:
        """Nobody in this world."""
        return ()


class Program:
    """One that a rank started."""

    __slots__ = ("code", "ended", "ends_ns", "name", "popen", "process", "where")

    def __init__(self, process: SimProcess, popen: subprocess.Popen[Any], name: str, where: str, ends_ns: int) -> None:
        self.process = process
        self.popen = popen
        self.name = name
        self.where = where  # "train.py:12 in main", or nothing
        self.ends_ns = ends_ns  # in virtual time
        self.code: int | None = None  # that it ends with, whatever it returns: it was killed in virtual time
        self.ended = False  # and its end is recorded

    def pass_time(self, process: SimProcess, timeout_s: float | None = None) -> bool:
        """Let virtual time pass until it ends; False if the timeout came first."""
        simulation = process.simulation
        task = simulation.check()
        deadline_ns = None if timeout_s is None else simulation.now_ns + max(0, round(timeout_s * 1e9))
        while simulation.now_ns < self.ends_ns:
            until_ns = self.ends_ns if deadline_ns is None else min(self.ends_ns, deadline_ns)
            if simulation.now_ns >= until_ns:
                return False
            timer = simulation.call_at(until_ns, lambda: simulation.wake(task))
            try:
                simulation.park(_End(self.name))
            finally:
                timer.cancel()
            process.drain()
        return True

    def signal(self, number: int) -> None:
        """Send it a signal."""
        now_ns = self.process.simulation.now_ns
        if number in _ENDING and now_ns < self.ends_ns:
            if number == signal.SIGKILL or self._has_really_ended():
                self.code = -int(number)
            self.ends_ns = now_ns
            self.process.wake()
        original(os.kill)(self.popen.pid, number)

    def wait_really(self, *, patient: bool) -> None:
        """Wait for its end in real time; who is not patient waits only so long.

        Raises:
            SimdistError: it goes on.
        """
        until_s, pause_s = original(_real_seconds)() + _PATIENCE_S, 0.0005
        while not patient and original(subprocess.Popen.poll)(self.popen) is None:
            if original(_real_seconds)() > until_s:
                raise SimdistError(
                    f"rank {self.process.rank}: the program {self.name!r} has come to the end of its virtual time, and "
                    f"runs on for more than {_PATIENCE_S:g} real seconds; program_ns (in files program_time) says how "
                    "long the programs of ranks take, and one that is to run until it is told to end needs more than "
                    "that"
                )
            original(_sleep)(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        original(subprocess.Popen.wait)(self.popen)
        self.note_end()

    def note_end(self) -> None:
        """Record its end, if it has ended and nobody knows."""
        if self.popen.returncode is None or self.ended:
            return
        self.ended = True
        if self.code is not None:
            self.popen.returncode = self.code
        process = self.process
        process.programs.pop(self.popen.pid, None)
        simulation = process.simulation
        simulation.bus.record(program_ended(simulation.now_ns, process.rank, self.name, self.popen.returncode))

    def _has_really_ended(self) -> bool:
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Programs:
    """Those of a world, and how long each takes in virtual time."""

    def __init__(self) -> None:
        self.duration_ns = 0
        self._all: list[Program] = []

    def begin(self, process: SimProcess, popen: subprocess.Popen[Any], args: Any, frame: FrameType | None) -> None:
        """A rank has started one. Those that torch starts for itself, compilers above all, are torch's own affair."""
        caller = _outside_of_standard_library(frame)
        if caller is not None and caller.f_code.co_filename.startswith(torch_folder() or "\0"):
            return
        simulation = process.simulation
        where = _line(user_frame(frame) or caller)
        program = Program(process, popen, _name(args), where, simulation.now_ns + self.duration_ns)
        process.programs[popen.pid] = program
        self._all.append(program)
        simulation.bus.record(program_started(simulation.now_ns, process.rank, program.name, where))

    def started(self) -> list[tuple[str, str, int]]:
        """For each its name, the line that started it, and the rank."""
        return [(each.name, each.where, each.process.rank) for each in self._all]

    def end(self) -> None:
        """Kill those that run on: their world is over."""
        for program in self._all:
            if program.popen.poll() is None:
                program.popen.kill()
                program.popen.wait()
        self._all.clear()


def _name(args: Any) -> str:
    """That of its file, or of the first word of a shell's command. All of it may hold what no seed decides: paths."""
    first = args.split(None, 1)[:1] if isinstance(args, str | bytes) else [*([args] if _is_path(args) else args)][:1]
    return PurePath(os.fsdecode(first[0])).name if first else ""


def _is_path(args: Any) -> bool:
    return isinstance(args, os.PathLike)


def _line(frame: FrameType | None) -> str:
    return "" if frame is None else f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _outside_of_standard_library(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        is_ours(frame)
        or (frame.f_code.co_filename.startswith(_STANDARD) and "-packages" not in frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame
