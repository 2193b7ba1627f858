"""psutil on a rank: its table of processes holds those of the rank's host, each with its own data.

psutil asks the operating system, which does not know the ranks' processes. Here it shows what the simulation knows of
a simulated process: pid, parent, children, arguments, environment, state, when it began, and the time it took, which is
what `time.process_time` counts. All else is that of the one process in which all ranks live: its name, its users, its
files and its memory. So `memory_info` has the memory of all ranks together, and another number in each run. A rank
finds the processes of its own machine, its launcher, and the programs that it started.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from simdist.errors import UnsupportedError
from simdist.inside.python import original
from simdist.kernel import TaskState
from simdist.process._process import SimProcess
from simdist.process._runtime import Make, Patches, current_process, current_runtime

__all__ = ["adapt"]

_NAME = "psutil"
_SETTING = ("cpu_affinity_set", "ionice_set", "nice_set")


def adapt(patches: Patches) -> None:
    """Let psutil know the processes of ranks."""
    psutil = sys.modules[_NAME]
    platform = psutil._psplatform
    patches.replace(psutil, "_LOWEST_PID", None)
    patches.replace(psutil, "_pmap", {})  # what `process_iter` has seen
    patches.wrap(psutil, "_ppid_map", _ppid_map)
    made: dict[str, Make] = {"Process": _class, "pid_exists": _pid_exists, "pids": _pids}
    for name, make in made.items():
        patches.wrap(platform, name, make)


# -- the table -------------------------------------------------------------------------------------------------------


def _seen_from(process: SimProcess) -> Iterator[SimProcess]:
    """The processes of its machine that run, or that are zombies: their end was not waited for yet."""
    runtime = current_runtime()
    assert runtime is not None
    for other in runtime.processes.values():
        if other.host is process.host and (other.running or _is_zombie(other)):
            yield other


def _is_zombie(process: SimProcess) -> bool:
    return not process.running and process.parent is not None and process.pid in process.parent.children


def _table(process: SimProcess) -> dict[int, int]:
    """The pid of each process's parent, by pid."""
    launcher = process.oldest.parent_pid
    found = {launcher: 1}
    for other in _seen_from(process):
        found[other.pid] = other.parent_pid
        found |= dict.fromkeys(other.programs, other.pid)
    return dict(sorted(found.items()))


def _pids(original: Callable[[], list[int]]) -> Callable[[], list[int]]:
    @functools.wraps(original)
    def pids() -> list[int]:
        process = current_process()
        return original() if process is None else list(_table(process))

    return pids


def _pid_exists(original: Callable[[int], bool]) -> Callable[[int], bool]:
    @functools.wraps(original)
    def pid_exists(pid: int) -> bool:
        process = current_process()
        return original(pid) if process is None else pid in _table(process)

    return pid_exists


def _ppid_map(original: Callable[[], dict[int, int]]) -> Callable[[], dict[int, int]]:
    @functools.wraps(original)
    def ppid_map() -> dict[int, int]:
        process = current_process()
        return original() if process is None else _table(process)

    return ppid_map


# -- one process -----------------------------------------------------------------------------------------------------


def _class(original: Any) -> Callable[[int], object]:
    simulated = _simulated(original)

    @functools.wraps(original, updated=())
    def process_of(pid: int) -> object:
        runtime, process = current_runtime(), current_process()
        if runtime is None or process is None:
            return original(pid)
        if pid in process.programs:
            return original(pid)
        if pid == process.oldest.parent_pid:
            return simulated(pid, process.oldest, None)
        there = runtime.processes.get(pid)
        return original(pid) if there is None else simulated(pid, process, there)

    return process_of


def _simulated(base: type[Any]) -> type[Any]:
    """psutil's class for one process of this platform, as that of a simulated process."""
    psutil = sys.modules[_NAME]

    class SimulatedProcess(base):  # type: ignore[misc]
        """The process of a rank, of a rank's child, or of the launcher, whose `process` is None."""

        def __init__(self, pid: int, looking: SimProcess, process: SimProcess | None) -> None:
            self._known_as, self._looking, self._process = pid, looking, process
            super().__init__(pid)

        @property
        def pid(self) -> int:
            """The pid of the host's process, by which psutil asks for all that the simulation does not know."""
            self._require()
            if self._process is not None and not self._process.running:
                raise psutil.ZombieProcess(self._known_as)
            return original(os.getpid)()

        @pid.setter
        def pid(self, pid: int) -> None:
            """It is always the same."""

        def _require(self) -> None:
            process = self._process
            if process is not None and not process.running and not _is_zombie(process):
                raise psutil.NoSuchProcess(self._known_as)

        def create_time(self, monotonic: bool = False, fast_only: bool = False) -> float:
            self._require()
            began_ns = 0 if self._process is None else self._process.began_ns
            if monotonic:
                return began_ns / 1e9
            now_ns = self._looking.simulation.now_ns  # the time of boot moves when the clock is set
            return (self._looking.calendar_ns(now_ns) - now_ns + began_ns) / 1e9

        def ppid(self) -> int:
            self._require()
            return 1 if self._process is None else self._process.parent_pid

        def status(self) -> str:
            self._require()
            if self._process is not None and not self._process.running:
                return str(psutil.STATUS_ZOMBIE)
            runs = self._process is not None and self._process.has_baton
            return str(psutil.STATUS_RUNNING if runs else psutil.STATUS_SLEEPING)

        def cmdline(self) -> list[str]:
            argv = super().cmdline() if self._process is None else [sys.executable, *self._process.argv]
            return list(argv)

        def environ(self) -> dict[str, str]:
            if self._process is None:
                return dict(super().environ())
            items = self._process.environ.items()
            return {os.fsdecode(name): os.fsdecode(value) for name, value in items}

        def cwd(self) -> str:
            return str(Path.cwd()) if self._process is current_process() else str(super().cwd())

        def cpu_times(self) -> object:
            found = super().cpu_times()
            began_ns = 0 if self._process is None else self._process.began_ns
            taken_s = (self._looking.simulation.now_ns - began_ns) / 1e9
            return found._replace(**dict.fromkeys(found._fields, 0.0) | {"user": taken_s})

        def num_threads(self) -> int:
            if self._process is None:
                return 1
            self._require()
            return sum(task.state is not TaskState.DONE for task in self._process.tasks)

        def cpu_affinity_get(self) -> list[int]:
            self._require()
            return sorted(os.sched_getaffinity(0))

        def wait(self, timeout: float | None = None) -> object:
            # The platform's own way, which opens a process as a file, would look at the host's process.
            return psutil._psposix.wait_pid_posix(self._known_as, timeout)

        def rlimit(self, resource: int, limits: tuple[int, int] | None = None) -> object:
            if limits is not None:
                _refuse("rlimit")
            return super().rlimit(resource)

    for name in _SETTING:
        if hasattr(base, name):
            setattr(SimulatedProcess, name, _refused(name.removesuffix("_set")))
    return SimulatedProcess


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *args: object) -> NoReturn:
        _refuse(name)

    return refuse


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(
        f"psutil.Process.{name}() can't be set on a simulated rank; all ranks and their host program are one process"
    )
